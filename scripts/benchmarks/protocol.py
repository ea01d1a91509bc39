"""How to compare two programs on a shared, noisy machine: alternate them and take the ratios of neighbours.

Measurements run in the order A-B-B-A, so that a machine whose speed drifts favours neither. Each neighbouring A and B
give a ratio; a row reports the median of the ratios with a bootstrap interval.
"""

import logging
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpt.errors import UserError

log = logging.getLogger(__name__)

SCRIPTS = Path(__file__).parents[1]
CONFIGS = SCRIPTS.parent / "configs"

Pairs = Sequence[tuple[float, float]]
Peers = dict[str, Path | None]  # "transformers" and "nanogpt", if they take part; nanogpt's value is its checkout
Rows = dict[str, Callable[[Path], "list[Row]"]]  # by the name for --rows; takes an empty folder to write into


@dataclass(frozen=True)
class Row:
    """A measured value with its 95% interval."""

    work: str
    against: str  # "-" if the value is absolute
    value: float
    low: float
    high: float
    unit: str
    higher_is_better: bool = True


def time_python(*arguments: object, cwd: Path | None = None) -> tuple[float, str]:
    """Run Python with these arguments; returns the wall time in seconds, interpreter start included, and stdout."""
    command = [sys.executable, *map(str, arguments)]
    started = time.perf_counter()
    finished = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if finished.returncode != 0:
        raise UserError(f"`{' '.join(command)}` failed: {''.join(finished.stderr.splitlines()[-1:])}")
    return seconds, finished.stdout


def alternate(first: Callable[[], float], second: Callable[[], float], pairs: int) -> Pairs:
    """Run two measurements in the order A-B-B-A-A-B-..., each ``pairs`` times; returns the neighbours, (A, B) each."""
    results = []
    for number in range(pairs):
        a, b = (first(), second()) if number % 2 == 0 else (second(), first())[::-1]
        log.info("  %.4g and %.4g", a, b)
        results.append((a, b))
    return results


def median_with_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Median and its 95% bootstrap interval (Efron 1979); with few values, about their whole range."""
    array = np.asarray(values, dtype=np.float64)
    picks = np.random.default_rng(0).integers(0, len(array), (10_000, len(array)))
    low, high = np.percentile(np.median(array[picks], axis=1), [2.5, 97.5])
    return float(np.median(array)), float(low), float(high)


def value_row(work: str, against: str, values: Sequence[float], unit: str, higher_is_better: bool = True) -> Row:
    """A row from repeated measurements."""
    return Row(work, against, *median_with_interval(values), unit, higher_is_better)


def ratio_row(work: str, against: str, pairs: Pairs, unit: str = "times as fast", higher_is_better: bool = True) -> Row:
    """A row from pairs (A, B) of rates, such as tokens per second: the median of A / B."""
    return value_row(work, against, [a / b for a, b in pairs], unit, higher_is_better)


def table(rows: Sequence[Row]) -> str:
    """The rows as lines of text."""
    return "\n".join(
        f"{row.work} | {row.against} | {row.value:.4g} [{row.low:.4g}, {row.high:.4g}] {row.unit} | "
        f"{'higher' if row.higher_is_better else 'lower'} is better"
        for row in rows
    )
