"""Measure this code against others, on this machine, in one run. See --help."""

import importlib.util
import logging
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpt.cli import ArgumentParser, print_json, run
from gpt.errors import UserError

if TYPE_CHECKING:
    from gpt.benchmark.train import Peers

DESCRIPTION = """\
Measure, alternating with what it is measured against, and print ratios with their 95% interval.

  python scripts/benchmark.py train --peers transformers nanogpt=../nanoGPT
  python scripts/benchmark.py generate --peers transformers nanogpt=../nanoGPT
  python scripts/benchmark.py data
"""
EPILOG = """\
Rows (minutes each on 2 CPU cores):
  train:     step (4), long (13), overhead (4), overhead-small (5), learning (9), noise (1), scaling (4);
             on a GPU: gpu (4), noise (1)
  generate:  peers (3), own (3), position (0.5), start (0.5)
  data:      prepare (3), loader (0.5)

Leave the machine alone meanwhile. --json prints {"rows": [...]}, each with the keys work, against, value, low, high,
unit, higher_is_better, must, aim and met ("aim", "must", "no", or "-" where there is nothing to meet).
"""


def parser() -> ArgumentParser:
    """The command line."""
    parser = ArgumentParser(prog="benchmark.py", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("what", choices=("train", "generate", "data"), help="which benchmark")
    parser.add_argument("--rows", nargs="+", metavar="NAME", help="only these rows; see below")
    parser.add_argument(
        "--peers",
        nargs="+",
        default=[],
        metavar="PEER",
        help="whom to measure against: transformers, nanogpt=DIR (a checkout); also with a comma between them",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    return parser


def body(argv: list[str]) -> int:
    """Measure."""
    args = parser().parse_args(argv)
    # Imported here so that --help answers at once.
    from dataclasses import asdict

    from gpt.benchmark import data, generate, train
    from gpt.benchmark.protocol import table

    peers = _peers(args.peers)
    available = {"train": train.rows(peers), "generate": generate.rows(peers), "data": data.ROWS}[args.what]
    names = args.rows or list(available)
    if unknown := [name for name in names if name not in available]:
        raise UserError(f"there is no row {unknown[0]!r} in {args.what}; it has {', '.join(available)}")
    rows = []
    for name in names:
        logging.getLogger("benchmark").info("%s ...", name)
        with tempfile.TemporaryDirectory() as folder:
            rows += available[name](Path(folder))
    if args.json:
        print_json({"rows": [{**asdict(row), "met": row.met} for row in rows]})
    else:
        print(table(rows))
    return 0


def _peers(names: list[str]) -> "Peers":
    from gpt.benchmark.train import Peers

    folder, transformers = None, False
    for name in ",".join(names).split(",") if names else []:
        kind, _, where = name.partition("=")
        if kind == "nanogpt" and where:
            folder = Path(where)
            if not (folder / "model.py").is_file():
                raise UserError(f"--peers {name}: {folder} is no checkout of nanoGPT (it has no model.py)")
        elif name == "transformers":
            if importlib.util.find_spec("transformers") is None:
                raise UserError("--peers transformers: it is not installed; pip install transformers")
            transformers = True
        else:
            raise UserError(f"--peers {name!r} is unknown; give transformers or nanogpt=DIR")
    return Peers(folder, transformers)


main = partial(run, body)  # takes argv, by default the process's; returns the exit status

if __name__ == "__main__":
    sys.exit(main())
