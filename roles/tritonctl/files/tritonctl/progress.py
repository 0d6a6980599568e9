"""A line on stderr every few seconds while something takes long, so that nobody takes it for dead."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tritonctl.deadline import Deadline

_QUIET_S = 10.0
_EVERY_S = 5.0


class Progress:
    """Writes to stderr; silent when not enabled."""

    def __init__(self, enabled: bool, quiet_s: float = _QUIET_S, every_s: float = _EVERY_S) -> None:
        self._enabled = enabled
        self._quiet_s = quiet_s
        self._every_s = every_s

    def say(self, text: str) -> None:
        if self._enabled:
            print(f"tritonctl: {text}", file=sys.stderr, flush=True)

    @contextmanager
    def during(self, what: str, deadline: Deadline) -> Iterator[None]:
        """Tell of `what` while the body runs. A thread does it: the body may sit in one long request."""
        over = threading.Event()

        def tell() -> None:
            pause = self._quiet_s
            while not over.wait(pause):
                self.say(f"{what}: {deadline.elapsed:.0f} s so far, at most {deadline.seconds:g} s")
                pause = self._every_s

        thread = threading.Thread(target=tell, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
