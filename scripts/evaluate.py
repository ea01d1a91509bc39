"""Evaluate a checkpoint on prepared data. See --help."""

import sys
from functools import partial
from pathlib import Path

from gpt.cli import ArgumentParser, print_json, print_text, progress, run
from gpt.errors import UserError

DESCRIPTION = """\
Loss, perplexity and bits per byte of a model over a whole split.

  python scripts/evaluate.py checkpoints/quickstart --data data/pydocs
"""
EPILOG = """\
A model that was trained with data.document_mask is evaluated with it.
--json prints one object with the keys loss_nats, perplexity, bits_per_byte and tokens.
"""


def parser() -> ArgumentParser:
    """The command line."""
    parser = ArgumentParser(prog="evaluate.py", description=DESCRIPTION, epilog=EPILOG)
    parser.add_checkpoint()
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder that prepare_data.py wrote")
    parser.add_argument("--split", default="val", help="train or val (default val)")
    parser.add_argument(
        "--overlap",
        type=int,
        default=0,
        metavar="N",
        help="tokens that each window repeats from the one before as context (default 0; more is slower and lower)",
    )
    parser.add_argument("--batch-size", type=int, default=8, metavar="N", help="windows at once (default 8)")
    parser.add_device()
    parser.add_argument(
        "--quantize", choices=("int8",), help="round weights to 8 bits, as generate.py does: what it costs (CPU)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    return parser


def body(argv: list[str]) -> int:
    """Evaluate."""
    args = parser().parse_args(argv)
    if args.batch_size < 1:
        raise UserError(f"--batch-size is {args.batch_size}; it must be at least 1")
    # Imported here so that --help answers at once.
    from dataclasses import asdict

    from torch.utils.data import DataLoader

    from gpt.checkpoint import load_model, uses_document_mask
    from gpt.cli import choose_device
    from gpt.data.manifest import Manifest, SplitTokens
    from gpt.data.windows import TokenWindows
    from gpt.evaluation import evaluate
    from gpt.generation.packed import PackedGPT

    manifest = Manifest.load(args.data)
    tokens = SplitTokens(args.data, manifest, args.split)
    model, tokenizer = load_model(args.checkpoint, choose_device(args.device))
    manifest.check_tokenizer(tokenizer)
    decoder = PackedGPT(model, args.quantize) if args.quantize else model
    del model  # PackedGPT holds what it needs of it
    windows = TokenWindows(tokens, decoder.config.context_length, args.overlap)
    batches = DataLoader(windows, batch_size=args.batch_size)
    document_eot = manifest.eot_id if uses_document_mask(args.checkpoint) else None
    evaluation = evaluate(decoder, progress(batches, len(batches), "batches"), tokens.info.utf8_bytes, document_eot)
    if args.json:
        print_json(asdict(evaluation))
    else:
        print_text(f"{evaluation}, over {evaluation.tokens:,} tokens")
    return 0


main = partial(run, body)  # takes argv, by default the process's; returns the exit status

if __name__ == "__main__":
    sys.exit(main())
