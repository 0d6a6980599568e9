"""A time limit that is set once and asked many times."""

from __future__ import annotations

import time


class Deadline:
    """Runs out `seconds` after it was made, by the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._start = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._start

    @property
    def remaining(self) -> float:
        """Seconds left, never below 0."""
        return max(0.0, self.seconds - self.elapsed)

    @property
    def expired(self) -> bool:
        return self.remaining == 0.0

    def sleep(self, seconds: float) -> None:
        """Sleep that long, or as long as is left."""
        time.sleep(min(seconds, self.remaining))
