"""How two things are compared on a shared, noisy machine: in alternation, by ratios of neighbours.

Blocks run in the order A-B-B-A, so that a machine that slowly changes its speed favours neither; each neighbouring
A and B give a ratio, and a row reports their median with a bootstrap interval.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

log = logging.getLogger(__name__)

_RESAMPLES = 10_000


@dataclass(frozen=True)
class Row:
    """One line of a benchmark: a value with its 95% interval, and what it is to reach.

    Args:
        work: what was done.
        against: what it is compared with.
        value: a ratio or a rate, see ``unit``.
        low: lower end of the interval.
        high: upper end.
        unit: of value, low and high.
        higher_is_better: direction.
        must: the least that is acceptable; None for a row that only informs.
        aim: what we would like.
    """

    work: str
    against: str
    value: float
    low: float
    high: float
    unit: str
    higher_is_better: bool = True
    must: float | None = None
    aim: float | None = None

    @property
    def met(self) -> str:
        """``"aim"``, ``"must"``, ``"no"``, or ``"-"`` for a row that has no must."""
        if self.must is None:
            return "-"
        sign = 1 if self.higher_is_better else -1
        if self.aim is not None and sign * self.value >= sign * self.aim:
            return "aim"
        return "must" if sign * self.value >= sign * self.must else "no"


def alternate(first: Callable[[], float], second: Callable[[], float], pairs: int) -> list[tuple[float, float]]:
    """Run two measurements in the order A-B-B-A-A-B-...

    Args:
        first: measures A; returns seconds, or a rate.
        second: measures B, in the same unit.
        pairs: how often each runs.

    Returns:
        Neighbouring results, (A, B) each.
    """
    results = []
    for number in range(pairs):
        if number % 2 == 0:
            a = first()
            b = second()
        else:
            b = second()
            a = first()
        log.info("  %.4g and %.4g", a, b)
        results.append((a, b))
    return results


def median_with_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, and its 95% interval by resampling with replacement (Efron 1979), from a fixed seed.

    Of few values (four, say), the interval is about their whole range.
    """
    array = np.asarray(values, dtype=np.float64)
    picks = np.random.default_rng(0).integers(0, len(array), (_RESAMPLES, len(array)))
    low, high = np.percentile(np.median(array[picks], axis=1), [2.5, 97.5])
    return float(np.median(array)), float(low), float(high)


def ratio_row(
    work: str,
    against: str,
    pairs: Sequence[tuple[float, float]],
    must: float | None = None,
    aim: float | None = None,
    unit: str = "times as fast",
    higher_is_better: bool = True,
) -> Row:
    """A row from (ours, theirs) pairs of rates, such as tokens per second: the median of ours over theirs."""
    value, low, high = median_with_interval([ours / theirs for ours, theirs in pairs])
    return Row(work, against, value, low, high, unit, higher_is_better, must, aim)


def value_row(
    work: str,
    against: str,
    values: Sequence[float],
    unit: str,
    must: float | None = None,
    aim: float | None = None,
    higher_is_better: bool = True,
) -> Row:
    """A row from repeated measurements of one thing."""
    return Row(work, against, *median_with_interval(values), unit, higher_is_better, must, aim)


def table(rows: Sequence[Row]) -> str:
    """The rows for a person."""
    lines = []
    for row in rows:
        aim = "" if row.aim is None else f", aim {row.aim:g}"
        goal = "" if row.must is None else f"must {row.must:g}{aim}: {row.met}"
        interval = f"{row.value:.4g} [{row.low:.4g}, {row.high:.4g}] {row.unit}"
        lines.append(f"{row.work} | {row.against} | {interval} | {goal}".rstrip(" |"))
    return "\n".join(lines)
