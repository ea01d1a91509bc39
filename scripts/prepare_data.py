"""Turn text into token shards that train.py reads. See --help."""

import argparse
import logging
import sys
from pathlib import Path

from gpt.command_line import ArgumentParser, print_json, run

DESCRIPTION = """\
Encode text and write it to a folder as token shards with a manifest, split into train and val.

  python scripts/prepare_data.py pydocs --output data/pydocs --tokenizer bytes
  python scripts/prepare_data.py book.txt notes/ --output data/mine
  python scripts/prepare_data.py --verify data/mine
"""
EPILOG = """\
Run twice with the same text and options, it leaves the folder as it is. --json prints the manifest, with the
keys path, tokenizer, vocab_size, splits (tokens, documents, utf8_bytes, shards), sources, options and others.
"""


def parser() -> ArgumentParser:
    """The command line."""
    parser = ArgumentParser(
        prog="prepare_data.py",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "sources",
        nargs="*",
        metavar="SOURCE",
        help="text file, folder (its .txt and .md files), or pydocs: the Python reference inside this interpreter",
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder to write, such as data/NAME")
    parser.add_argument("--tokenizer", default="gpt2", help="gpt2 (default), bytes, or any tiktoken name")
    parser.add_argument(
        "--val-fraction", type=float, default=0.1, metavar="F", help="share of the text for validation (default 0.1)"
    )
    parser.add_argument(
        "--shard-tokens", type=int, default=100_000_000, metavar="N", help="most tokens in a file (default 100000000)"
    )
    parser.add_argument("--verify", type=Path, metavar="DIR", help="check every byte of a prepared folder instead")
    parser.add_argument("--json", action="store_true", help="print the manifest as one JSON object on stdout")
    return parser


def body(argv: list[str]) -> int:
    """Prepare or verify."""
    args = parser().parse_args(argv)
    # Imported here so that --help answers at once.
    from dataclasses import asdict

    from gpt.data.prepare import prepare
    from gpt.data.shards import verify

    log = logging.getLogger("prepare_data")
    if args.verify:
        if args.sources or args.output:
            raise ValueError("--verify takes one prepared folder and neither SOURCE nor --output")
        folder, manifest, outcome = args.verify, verify(args.verify), "every byte as written"
    else:
        if not args.sources or not args.output:
            raise ValueError("give a SOURCE and --output DIR, for example: pydocs --output data/pydocs")
        folder = args.output
        manifest, written = prepare(args.sources, folder, args.tokenizer, args.val_fraction, args.shard_tokens)
        outcome = "written" if written else "already there, nothing to do"
    for name, split in manifest.splits.items():
        log.info(
            "%s: %s tokens from %d documents (%.2f MB)",
            name,
            f"{split.tokens:,}",
            split.documents,
            split.utf8_bytes / 1e6,
        )
    log.info("%s: %s (tokenizer %s, %d ids)", folder, outcome, manifest.tokenizer, manifest.vocab_size)
    if args.json:
        print_json({"path": str(folder), **asdict(manifest)})
    return 0


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run(body, argv)


if __name__ == "__main__":
    sys.exit(main())
