"""Import and export GPT-2 weights in Hugging Face's format. See --help."""

import logging
import sys
from functools import partial
from pathlib import Path

from gpt.cli import ArgumentParser, run
from gpt.errors import UserError

DESCRIPTION = """\
Convert between a run folder and a Hugging Face GPT-2 folder (config.json, model.safetensors, tokenizer.json).

  python scripts/convert.py from-hf openai-community/gpt2 checkpoints/gpt2
  python scripts/convert.py to-hf checkpoints/mine exported/mine

transformers loads the exported folder with GPT2LMHeadModel.from_pretrained and AutoTokenizer.from_pretrained.
"""


def parser() -> ArgumentParser:
    """The command line."""
    parser = ArgumentParser(prog="convert.py", description=DESCRIPTION)
    directions = parser.add_subparsers(dest="direction", required=True, metavar="from-hf | to-hf")
    importing = directions.add_parser("from-hf", help="import into a run folder")
    importing.add_argument("source", metavar="NAME_OR_DIR", help="a name on the Hub, or a folder")
    importing.add_argument("target", metavar="RUN_DIR", type=Path, help="folder to create; gets best.ckpt")
    exporting = directions.add_parser("to-hf", help="export into a Hugging Face folder")
    exporting.add_argument("source", metavar="CHECKPOINT", help="run folder (best.ckpt, else last.ckpt) or .ckpt file")
    exporting.add_argument("target", metavar="OUT_DIR", type=Path, help="folder to create")
    return parser


def body(argv: list[str]) -> int:
    """Convert."""
    args = parser().parse_args(argv)
    # Imported here so that --help answers at once.
    from gpt.checkpoint import BEST, is_huggingface, load_model, write_model
    from gpt.huggingface import write_pretrained

    target: Path = args.target
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} exists and is not an empty folder; choose another")
    if args.direction == "from-hf" and not is_huggingface(args.source):
        raise UserError(f"{args.source} is not a Hugging Face folder (it has no config.json), nor a name on its Hub")
    model, tokenizer = load_model(args.source)
    is_new = not target.exists()
    try:
        if args.direction == "from-hf":
            target.mkdir(parents=True, exist_ok=True)
            write_model(target / BEST, model.config, model.state_dict(), tokenizer)
        else:
            write_pretrained(target, model.config, model.state_dict(), tokenizer)
    except BaseException:  # such as a full disk
        for file in target.glob("*"):
            file.unlink()
        if is_new and target.exists():
            target.rmdir()
        raise
    logging.getLogger("convert").info("wrote %s", target)
    return 0


main = partial(run, body)  # takes argv, by default the process's; returns the exit status

if __name__ == "__main__":
    sys.exit(main())
