import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.errors import UserError
from gpt.generation.sampling import StopFinder


def _through(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    finder, out = StopFinder(stops), ""
    for piece in pieces:
        out += finder.push(piece)
        if finder.found:
            return out, True
    return out + finder.finish(), False


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=5), max_size=3), st.integers(0, 999))
def test_text_in_any_pieces_ends_before_the_first_stop_string(text: str, stops: list[str], seed: int) -> None:
    generator, pieces, rest = random.Random(seed), [], text
    while rest:
        size = generator.randint(1, 4)
        pieces.append(rest[:size])
        rest = rest[size:]
    out, found = _through(pieces, stops)
    assert found == any(stop in text for stop in stops)
    if not found:
        assert out == text
        return
    # By brute force: the fewest pieces that contain a stop string, cut at the first one in them.
    for count in range(1, len(pieces) + 1):
        seen = "".join(pieces[:count])
        if starts := [seen.find(stop) for stop in stops if stop in seen]:
            assert out == seen[: min(starts)]
            return


def test_only_text_that_may_begin_a_stop_string_is_held_back() -> None:
    finder = StopFinder(["\n\nQ:"])
    assert [finder.push(piece) for piece in ["one", "\n", "\n", "A", "\n\n", "Q", "!"]] == [
        "one", "", "", "\n\nA", "", "", "\n\nQ!",
    ]  # fmt: skip
    assert not finder.found


def test_a_stop_string_that_overlaps_itself_is_found() -> None:
    assert _through(list("aaab"), ["aab"]) == ("a", True)
    assert _through(["ababab", "c"], ["ababc"]) == ("ab", True)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UserError, match="a stop string is empty"):
        StopFinder(["a", ""])
