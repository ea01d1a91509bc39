import pytest

from gpt.benchmark.protocol import Row, alternate, median_with_interval, ratio_row, table


def test_blocks_alternate_so_that_drift_favours_neither() -> None:
    order: list[str] = []

    def run(name: str) -> float:
        order.append(name)
        return float(len(order))

    pairs = alternate(lambda: run("A"), lambda: run("B"), pairs=4)
    assert "".join(order) == "ABBAABBA"
    assert pairs == [(1, 2), (4, 3), (5, 6), (8, 7)]
    # A machine that slows down linearly: the sums are equal.
    assert sum(a for a, _ in pairs) == sum(b for _, b in pairs)


def test_the_interval_is_the_bootstraps() -> None:
    assert median_with_interval([2.0] * 5) == (2.0, 2.0, 2.0)
    median, low, high = median_with_interval(range(1, 102))
    assert median == 51
    # The median of n uniform values has a standard deviation of about width / (2 sqrt(n)) = 5.
    assert low == pytest.approx(51 - 1.96 * 5, abs=2.5)
    assert high == pytest.approx(51 + 1.96 * 5, abs=2.5)


@pytest.mark.parametrize(
    "value,higher_is_better,met",
    [(2.0, True, "aim"), (1.5, True, "must"), (1.0, True, "no"), (2.0, False, "no"), (0.5, False, "aim")],
)
def test_a_row_says_what_it_meets(value: float, higher_is_better: bool, met: str) -> None:
    must, aim = (1.2, 1.8) if higher_is_better else (1.3, 1.1)
    assert Row("w", "a", value, value, value, "x", higher_is_better, must, aim).met == met
    assert Row("w", "a", value, value, value, "x").met == "-"


def test_a_ratio_is_that_of_neighbours() -> None:
    row = ratio_row("ours", "theirs", [(2.0, 1.0), (20.0, 10.0), (0.2, 0.1)], must=1.5, aim=3.0)
    assert (row.value, row.low, row.high, row.met) == (2.0, 2.0, 2.0, "must")
    assert table([row]) == "ours | theirs | 2 [2, 2] times as fast | must 1.5, aim 3: must"
