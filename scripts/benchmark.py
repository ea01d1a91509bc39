"""Measure this project against others, on this machine, in one run. See --help."""

import importlib.util
import logging
import sys
import tempfile
from functools import partial
from pathlib import Path

from gpt.cli import ArgumentParser, print_json, print_text, run
from gpt.errors import UserError

log = logging.getLogger(__name__)

DESCRIPTION = """\
Measure speed, memory and learning, alternating with what they are compared with, and print ratios with 95% intervals.

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

Nothing else should run at the same time. --json prints {"rows": [...]}, each row with the keys work, against, value,
low, high, unit and higher_is_better.
"""


def parser() -> ArgumentParser:
    """The command line."""
    parser = ArgumentParser(prog="benchmark.py", description=DESCRIPTION, epilog=EPILOG)
    add = parser.add_argument
    add("benchmark", choices=("train", "generate", "data"), help="what to measure")
    add("--rows", nargs="+", action="extend", metavar="NAME", help="rows to measure, see below (default: all)")
    peers = "projects to compare with: transformers, nanogpt=DIR (a checkout); spaces or commas between them"
    add("--peers", nargs="+", action="extend", default=[], metavar="PEER", help=peers)
    add("--json", action="store_true", help="print one JSON object on stdout")
    return parser


def body(argv: list[str]) -> int:
    """Measure."""
    args = parser().parse_args(argv)
    peers = _peers(",".join(args.peers).split(",") if args.peers else [])
    # Imported here so that --help answers at once.
    from scripts.benchmarks import data, generate, train
    from scripts.benchmarks.protocol import table

    available = {"train": train.rows(peers), "generate": generate.rows(peers), "data": data.ROWS}[args.benchmark]
    names = args.rows or list(available)
    if unknown := [name for name in names if name not in available]:
        raise UserError(f"--rows is {unknown[0]!r}; expected any of {', '.join(available)}")
    rows = []
    for name in names:
        log.info("%s ...", name)
        with tempfile.TemporaryDirectory() as folder:
            measured = available[name](Path(folder))
        if not measured:
            log.warning("skipped row %s: it compares with a peer; name one with --peers", name)
        rows += measured
    if args.json:
        print_json({"rows": [vars(row) for row in rows]})
    else:
        print_text(table(rows))
    return 0


def _peers(values: list[str]) -> dict[str, Path | None]:
    """The peers by name, with nanoGPT's folder."""
    peers: dict[str, Path | None] = {}
    for value in values:
        name, _, folder = value.partition("=")
        if name == "nanogpt" and folder:
            peers[name] = Path(folder)
            if not (Path(folder) / "model.py").is_file():
                raise UserError(f"--peers is {value}; expected a checkout of nanoGPT, and {folder} has no model.py")
        elif value == "transformers":
            peers[name] = None
            if importlib.util.find_spec("transformers") is None:
                raise UserError("--peers is transformers, which is not installed; pip install transformers")
        else:
            raise UserError(f"--peers is {value!r}; expected transformers or nanogpt=DIR")
    return peers


main = partial(run, body)  # takes argv, by default the process's; returns the exit status

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))  # for the package scripts, here and in spawned processes
    sys.exit(main())
