"""Stop strings in streamed text."""

from collections.abc import Sequence

from gpt.errors import UserError


class StopFinder:
    """Passes text on as soon as it cannot be part of a stop string.

    Finds a stop string wherever it begins, also across pieces and inside a partial match of another.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise UserError("a stop string is empty; leave it out")
        self._stops = stops
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """Add text and return what is final; once a stop string is ``found``, the text before it."""
        self._held += text
        starts = [start for stop in self._stops if (start := self._held.find(stop)) >= 0]
        if starts:
            self.found = True
            final, self._held = self._held[: min(starts)], ""
            return final
        held = max((_partial_match(self._held, stop) for stop in self._stops), default=0)
        final = self._held[: len(self._held) - held]
        self._held = self._held[len(self._held) - held :]
        return final

    def finish(self) -> str:
        """Return the held text at the end of the stream."""
        held, self._held = self._held, ""
        return held


def _partial_match(text: str, stop: str) -> int:
    """Length of the longest proper prefix of ``stop`` that is a suffix of ``text``."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
