"""GPT-2 weights in from and out to Hugging Face's format. See --help."""

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

What is written loads by transformers' GPT2LMHeadModel.from_pretrained and AutoTokenizer.from_pretrained.
"""


def parser() -> ArgumentParser:
    """The command line."""
    parser = ArgumentParser(prog="convert.py", description=DESCRIPTION)
    directions = parser.add_subparsers(dest="direction", required=True, metavar="from-hf | to-hf")
    inward = directions.add_parser("from-hf", help="into a run folder of ours")
    inward.add_argument("source", metavar="NAME_OR_DIR", help="a name on the Hub, or a folder")
    inward.add_argument("target", metavar="RUN_DIR", type=Path, help="folder to make; gets best.ckpt")
    outward = directions.add_parser("to-hf", help="into a Hugging Face folder")
    outward.add_argument("source", metavar="CHECKPOINT", help="run folder (best.ckpt, else last.ckpt) or .ckpt file")
    outward.add_argument("target", metavar="OUT_DIR", type=Path, help="folder to make")
    return parser


def body(argv: list[str]) -> int:
    """Convert."""
    args = parser().parse_args(argv)
    # Imported here so that --help answers at once.
    from gpt.checkpoint import BEST, load_model, write_model
    from gpt.huggingface import read_pretrained, write_pretrained

    target: Path = args.target
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} exists and is not an empty folder; choose another")
    if args.direction == "from-hf":
        config, weights, tokenizer = read_pretrained(args.source)
        target.mkdir(parents=True, exist_ok=True)
        write_model(target / BEST, config, weights, tokenizer)
    else:
        model, tokenizer = load_model(args.source)
        write_pretrained(target, model.config, model.state_dict(), tokenizer)
    logging.getLogger("convert").info("wrote %s", target)
    return 0


main = partial(run, body)  # takes argv, by default the process's; returns the exit status

if __name__ == "__main__":
    sys.exit(main())
