"""Stop strings in a text that arrives in pieces."""

from collections.abc import Sequence

from gpt.errors import UserError


class StopFinder:
    """Lets text through as soon as it cannot be part of a stop string any more.

    A stop string is found wherever it begins: across pieces, and inside what looked like the beginning of another.

    Args:
        stops: the strings; none of them empty.

    Raises:
        ValueError: one is empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise UserError("--stop is an empty text; leave it out")
        self._stops = stops
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """Add text; returns what is certain. After a stop string is ``found``, that is what came before it."""
        self._held += text
        starts = [start for stop in self._stops if (start := self._held.find(stop)) >= 0]
        if starts:
            self.found = True
            certain, self._held = self._held[: min(starts)], ""
            return certain
        kept = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        certain = self._held[: len(self._held) - kept]
        self._held = self._held[len(self._held) - kept :]
        return certain

    def finish(self) -> str:
        """What was held back, once nothing more comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest beginning of ``stop``, but not all of it, that ``text`` ends with."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
