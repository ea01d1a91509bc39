"""Turn text into token shards that train.py reads. See --help."""

import argparse
import logging
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpt.cli import ArgumentParser, print_json, run
from gpt.errors import UserError

if TYPE_CHECKING:
    from gpt.data.manifest import Manifest

DESCRIPTION = """\
Encode text and write it to a folder as token shards with a manifest, split into train and val.

  python scripts/prepare_data.py pydocs --output data/pydocs --tokenizer bytes
  python scripts/prepare_data.py book.txt notes/ 'logs/**/*.jsonl.gz' --output data/mine
  python scripts/prepare_data.py hf:HuggingFaceFW/fineweb-edu:sample-10BT --streaming --output data/fineweb
  python scripts/prepare_data.py data/from_nanogpt --tokenizer gpt2      (token files: adds a manifest)
  python scripts/prepare_data.py --verify data/mine

A SOURCE is a file, a folder (searched at any depth), a glob, hf:NAME[:CONFIG] (the Hugging Face Hub, or a dataset's
folder), a folder of token files by llm.c, modded-nanogpt, nanoGPT or build-nanogpt, or pydocs: the Python reference
inside this interpreter. A document is a file of plain text, or a row of .jsonl .json .csv .tsv .parquet; each may be
.gz or .zst. The end-of-text token begins each document.
"""
EPILOG = """\
Run twice with the same text and options, it leaves the folder as it is. --json prints the manifest, with the
keys path, tokenizer, vocab_size, splits (tokens, documents, utf8_bytes, shards), sources, options and others.
"""


def parser() -> ArgumentParser:
    """The command line."""
    parser = ArgumentParser(prog="prepare_data.py", description=DESCRIPTION, epilog=EPILOG)
    add = parser.add_argument
    add("sources", nargs="*", metavar="SOURCE", help="where the text is; several are read in the order given")
    add("--output", type=Path, metavar="DIR", help="folder to write, such as data/NAME")
    add("--tokenizer", metavar="NAME", help="gpt2 (default), bytes, or any tiktoken name")
    add("--val-fraction", type=float, default=0.1, metavar="F", help="share of the text for validation (default 0.1)")
    add("--text-column", default="text", metavar="C", help="of JSON, CSV, Parquet, datasets: the text (default text)")
    add("--split", default="train", help="of a dataset: which split to read (default train)")
    add("--streaming", action="store_true", help="go through the text once; --val-fraction then holds on average")
    add(
        "--special-tokens",
        default="text",
        choices=("text", "token", "error"),
        help="a literal <|endoftext|> in the text: ordinary characters (default), the token, or an error",
    )
    add(
        "--encoding-errors",
        default="strict",
        choices=("strict", "replace"),
        help="bytes that are not UTF-8: an error that names the first (default), or U+FFFD",
    )
    add("--newlines", default="keep", choices=("keep", "lf"), help="line ends: as they are (default), or each \\n")
    add("--shard-tokens", type=int, default=100_000_000, metavar="N", help="most tokens in a file (default 100000000)")
    add("--workers", type=int, metavar="N", help="threads that encode (default: the CPUs); the result is the same")
    add("--seed", type=int, default=0, metavar="N", help="another one chooses other documents for validation")
    add("--verify", type=Path, metavar="DIR", help="check every byte of a prepared folder instead")
    add("--json", action="store_true", help="print the manifest as one JSON object on stdout")
    return parser


def body(argv: list[str]) -> int:
    """Prepare or verify."""
    args = parser().parse_args(argv)
    # Imported here so that --help answers at once.
    from dataclasses import asdict

    from gpt.data.manifest import verify

    log = logging.getLogger("prepare_data")
    if args.verify:
        if args.sources or args.output:
            raise UserError("--verify takes one prepared folder and neither SOURCE nor --output")
        folder, manifest, outcome = args.verify, verify(args.verify), "every byte as written"
    else:
        folder, manifest, written = _prepare(args)
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


def _prepare(args: argparse.Namespace) -> "tuple[Path, Manifest, bool]":
    from gpt.data.documents import ReadOptions
    from gpt.data.foreign import adopt, token_files
    from gpt.data.prepare import PrepareOptions, prepare

    if not args.sources:
        raise UserError("give a SOURCE and --output DIR, for example: pydocs --output data/pydocs")
    if args.output is None:
        folder = Path(args.sources[0])
        if len(args.sources) > 1 or not token_files(folder):
            raise UserError("give --output DIR, a folder to write to (only a folder of token files needs none)")
        if args.tokenizer is None:
            raise UserError(f"{folder} holds token files, which do not say what made them; give --tokenizer NAME")
        return folder, *adopt(folder, args.tokenizer)
    options = PrepareOptions(args.val_fraction, args.shard_tokens, args.special_tokens, args.seed, args.streaming)
    reading = ReadOptions(args.text_column, args.split, args.encoding_errors, args.newlines)
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    chosen = workers if args.workers is None else args.workers
    return args.output, *prepare(args.sources, args.output, args.tokenizer or "gpt2", options, reading, chosen)


main = partial(run, body)  # takes argv, by default the process's; returns the exit status

if __name__ == "__main__":
    sys.exit(main())
