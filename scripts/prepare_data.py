"""Turn text into token shards for train.py. See --help."""

import argparse
import logging
import os
import sys
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpt.cli import ArgumentParser, print_json, run
from gpt.errors import UserError

if TYPE_CHECKING:
    from gpt.data.manifest import Manifest

DESCRIPTION = """\
Tokenize text and write it to a folder as token shards with a manifest, split into train and val.

  python scripts/prepare_data.py pydocs --output data/pydocs --tokenizer bytes
  python scripts/prepare_data.py book.txt notes/ 'logs/**/*.jsonl.gz' --output data/mine
  python scripts/prepare_data.py hf:HuggingFaceFW/fineweb-edu:sample-10BT --streaming --output data/fineweb
  python scripts/prepare_data.py roman.txt --output data/roman --train-tokenizer 4096
  python scripts/prepare_data.py data/from_nanogpt --tokenizer gpt2      (imports token files: adds a manifest)
  python scripts/prepare_data.py --verify data/mine

A SOURCE is a file, a folder (searched recursively), a glob, hf:NAME[:CONFIG] (on the Hugging Face Hub, or the folder
of a dataset), a folder of token files of llm.c, modded-nanogpt, nanoGPT or build-nanogpt, or pydocs: the Python
language reference included in this interpreter. A document is a plain text file, or a row of .jsonl .json .csv .tsv
.parquet, each optionally .gz or .zst. An end-of-text token begins each document.
"""
EPILOG = """\
Run again with the same text and options, it changes nothing. --json prints the manifest, with the keys path,
tokenizer, vocab_size, splits (tokens, documents, utf8_bytes, shards), sources, options and others.
"""


def parser() -> ArgumentParser:
    """The command line."""
    parser = ArgumentParser(prog="prepare_data.py", description=DESCRIPTION, epilog=EPILOG)
    add = parser.add_argument
    add("sources", nargs="*", metavar="SOURCE", help="text to prepare; several are read in the order given")
    add("--output", type=Path, metavar="DIR", help="folder to write to, such as data/NAME")
    add(
        "--tokenizer",
        metavar="NAME",
        help="gpt2 (default), bytes, any tiktoken encoding, or what has a vocabulary: prepared data, a run folder, a "
        "tokenizer.json, a Hugging Face GPT-2",
    )
    add("--train-tokenizer", type=int, default=0, metavar="N", help="train a vocabulary of N ids on the train split")
    add("--val-fraction", type=float, default=0.1, metavar="F", help="fraction of the text in val (default 0.1)")
    add("--text-column", default="text", metavar="C", help="text column of JSON, CSV, Parquet, datasets (default text)")
    add("--split", default="train", help="split of a dataset to read (default train)")
    add("--streaming", action="store_true", help="read the text only once; --val-fraction then holds on average")
    add(
        "--special-tokens",
        default="text",
        choices=("text", "token", "error"),
        help="a literal <|endoftext|> in the text is ordinary text (default), the token, or an error",
    )
    add(
        "--encoding-errors",
        default="strict",
        choices=("strict", "replace"),
        help="bytes that are not UTF-8 are an error (default), or replaced by U+FFFD",
    )
    add("--newlines", default="keep", choices=("keep", "lf"), help="keep line ends (default), or convert them to \\n")
    add("--shard-tokens", type=int, default=100_000_000, metavar="N", help="tokens per file (default 100000000)")
    add("--workers", type=int, metavar="N", help="encoding threads (default: all CPUs); the result does not change")
    add("--seed", type=int, default=0, metavar="N", help="seed of the choice of val documents (default 0)")
    add("--verify", type=Path, metavar="DIR", help="only verify every byte of prepared data")
    add("--json", action="store_true", help="print the manifest as one JSON object on stdout")
    return parser


def body(argv: list[str]) -> int:
    """Prepare or verify data, and report its size."""
    args = parser().parse_args(argv)
    from gpt.data.documents import counted  # --help must not wait for these imports
    from gpt.data.manifest import verify

    log = logging.getLogger("prepare_data")
    if args.verify:
        if args.sources or args.output:
            raise UserError("--verify takes one prepared folder and neither SOURCE nor --output")
        folder, manifest, outcome = args.verify, verify(args.verify), "all bytes verified"
    else:
        folder, manifest, is_written = _prepare(args)
        outcome = "written" if is_written else "unchanged"
    for name, split in manifest.splits.items():
        megabytes = split.utf8_bytes / 1e6
        tokens, documents = counted(split.tokens, "token"), counted(split.documents, "document")
        log.info("%s: %s from %s (%.2f MB)", name, tokens, documents, megabytes)
    log.info("%s: %s (tokenizer %s, %d ids)", folder, outcome, manifest.tokenizer, manifest.vocab_size)
    if args.json:
        print_json({"path": str(folder), **asdict(manifest)})
    return 0


def _prepare(args: argparse.Namespace) -> "tuple[Path, Manifest, bool]":
    from gpt.checkpoint import load_tokenizer
    from gpt.data.documents import PrepareOptions
    from gpt.data.manifest import find_token_files, import_token_files
    from gpt.data.prepare import prepare

    if not args.sources:
        raise UserError("give a SOURCE and --output DIR, for example: pydocs --output data/pydocs")
    if args.output is None:
        folder = Path(args.sources[0])
        if len(args.sources) > 1 or not find_token_files(folder):
            raise UserError("give --output DIR, a folder to write to (only a folder of token files needs none)")
        if args.tokenizer is None:
            raise UserError(f"{folder} has token files, which do not name their tokenizer; give --tokenizer NAME")
        return folder, *import_token_files(folder, load_tokenizer(args.tokenizer))
    if args.tokenizer and args.train_tokenizer:
        raise UserError("give either --tokenizer or --train-tokenizer")
    options = PrepareOptions(**{field.name: getattr(args, field.name) for field in fields(PrepareOptions)})
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = cpus if args.workers is None else args.workers
    tokenizer = "gpt2" if args.train_tokenizer else load_tokenizer(args.tokenizer or "gpt2")
    return args.output, *prepare(args.sources, args.output, tokenizer, options, workers)


main = partial(run, body)  # takes argv, by default the process's; returns the exit status

if __name__ == "__main__":
    sys.exit(main())
