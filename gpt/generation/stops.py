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
        """Add text and return what is final; once a stop string is ``found``, the text before it, then nothing."""
        self._held += text
        ends = [end for stop in self._stops if (end := self._held.find(stop)) >= 0]
        self.found = bool(ends)
        if not self.found:  # a suffix that begins a stop string is not final
            suffixes = range(len(self._held))
            ends = [end for end in suffixes if any(stop.startswith(self._held[end:]) for stop in self._stops)]
        end = min(ends, default=len(self._held))
        final, self._held = self._held[:end], self._held[end:]
        return final

    def finish(self) -> str:
        """Return the held text at the end of the stream; nothing if a stop string is found."""
        return "" if self.found else self._held
