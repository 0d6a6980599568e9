"""Threads between the engine and Triton, so that the engine never waits for a message to the server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

POLL_SECONDS = 0.1  # how often Triton is asked about each running request: a message to the server each time


class Outbox:
    """Runs deliveries one after another on a thread of its own; one that raises is logged."""

    def __init__(self, log_error: Callable[[str], None]) -> None:
        self._log_error = log_error
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="llamacpp-outbox")
        self._thread.start()

    def put(self, deliver: Callable[[], None]) -> None:
        """Run `deliver` after everything that was put before."""
        self._queue.put(deliver)

    def close(self) -> None:
        """Run what was put so far, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _loop(self) -> None:
        while (deliver := self._queue.get()) is not None:
            try:
                deliver()
            except Exception as error:  # the others' answers must not suffer
                self._log_error(f"an answer could not be delivered: {error!r}")
            del deliver  # or an idle outbox would hold the last request's memory


class Watched(Protocol):
    """A request that may lose its client."""

    def look(self) -> bool:
        """Ask Triton whether the client has gone, and remember it; False once there is no more use in asking."""


class Watcher:
    """Looks after running requests from a thread of its own, which sleeps while there are none."""

    def __init__(self, log_error: Callable[[str], None]) -> None:
        self._log_error = log_error
        self._watched: set[Watched] = set()
        self._lock = threading.Lock()
        self._some = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="llamacpp-watcher")
        self._thread.start()

    def add(self, request: Watched) -> None:
        """Look at a request from now on, until its `look` answers False."""
        with self._lock:
            self._watched.add(request)
        self._some.set()

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._closing.set()
            self._some.set()
        self._thread.join()

    def _loop(self) -> None:
        while True:
            self._some.wait()
            if self._closing.wait(POLL_SECONDS):  # most requests have ended before they are looked at
                return
            self._look()

    def _look(self) -> None:
        with self._lock:
            watched = list(self._watched)
        done = {request for request in watched if not self._is_useful(request)}
        with self._lock:
            self._watched -= done
            if not self._watched and not self._closing.is_set():  # or the thread would sleep through its end
                self._some.clear()

    def _is_useful(self, request: Watched) -> bool:
        try:
            return request.look()
        except Exception as error:  # the others must still be looked at
            self._log_error(f"a request could not be looked at: {error!r}")
            return False
