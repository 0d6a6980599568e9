"""Text that arrives as bytes in pieces: whole characters only, and never any part of a stop string.

The result does not depend on where the pieces are cut.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class StopFinder:
    """Looks for stop strings in a text that arrives in pieces and holds back what may still become one.

    The stop string whose last character comes first wins; of two that end together, the longer one.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def feed(self, text: str) -> str:
        """Take more text; return what is now known to be free of stop strings. Nothing comes after a found one."""
        if self.found:
            return ""
        pending = self._held + text
        matches = [(start + len(stop), start) for stop in self._stops if (start := pending.find(stop)) >= 0]
        if matches:
            self.found, self._held = True, ""
            return pending[: min(matches)[1]]
        keep = max((_overlap(pending, stop) for stop in self._stops), default=0)
        self._held = pending[len(pending) - keep :]
        return pending[: len(pending) - keep]

    def flush(self) -> str:
        """What was held back, when no more text comes: it did not become a stop string."""
        held, self._held = self._held, ""
        return held


class TextStream:
    """Bytes of tokens in, text for the client out."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = StopFinder(stops)

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found."""
        return self._stops.found

    def feed(self, data: bytes) -> str:
        """Take one token's bytes; return the text that can go out now, maybe none."""
        return self._stops.feed(self._decoder.decode(data))

    def finish(self) -> str:
        """The last text. A character that was cut off by the end of generation becomes one U+FFFD."""
        return self._stops.feed(self._decoder.decode(b"", final=True)) + self._stops.flush()


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, but not all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
