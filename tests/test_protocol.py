from pathlib import Path

import pytest

from gpt.errors import UserError
from scripts.benchmarks.protocol import alternate, median_with_interval, ratio_row, table, time_python


def test_measurements_alternate_so_that_drift_favours_neither() -> None:
    order: list[str] = []

    def run(name: str) -> float:
        order.append(name)
        return float(len(order))

    pairs = alternate(lambda: run("A"), lambda: run("B"), pairs=4)
    assert "".join(order) == "ABBAABBA"
    assert pairs == [(1, 2), (4, 3), (5, 6), (8, 7)]
    # On a machine that slows down linearly the sums are equal.
    assert sum(a for a, _ in pairs) == sum(b for _, b in pairs)


def test_the_interval_is_the_bootstrap_interval() -> None:
    assert median_with_interval([2.0] * 5) == (2.0, 2.0, 2.0)
    median, low, high = median_with_interval(range(1, 102))
    assert median == 51
    # The median of n uniform values has a standard deviation of about width / (2 sqrt(n)) = 5.
    assert low == pytest.approx(51 - 1.96 * 5, abs=2.5)
    assert high == pytest.approx(51 + 1.96 * 5, abs=2.5)


def test_a_ratio_is_the_median_over_neighbours() -> None:
    row = ratio_row("step", "peer", [(2.0, 1.0), (20.0, 10.0), (0.2, 0.1)])
    assert (row.value, row.low, row.high) == (2.0, 2.0, 2.0)
    assert table([row]) == "step | peer | 2 [2, 2] times as fast | higher is better"


def test_a_command_is_timed_and_its_failure_is_reported(tmp_path: Path) -> None:
    seconds, stdout = time_python("-c", "import os; print(os.getcwd())", cwd=tmp_path)
    assert 0 < seconds < 60
    assert stdout.strip() == str(tmp_path.resolve())
    with pytest.raises(UserError, match="failed: ValueError: no"):
        time_python("-c", "raise ValueError('no')")
