"""Runs jobs one after another on a thread of its own: first come, first served, in a bounded queue."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .errors import BackendError, Cancelled, EngineFailure, Unavailable
from .generator import Summary
from .parameters import Sampling


class Reply(Protocol):
    """Where a job's answer goes. Exactly one of `finish` and `fail` is called, last."""

    def client_gone(self) -> bool:
        """Whether the client has cancelled."""

    def piece(self, text: str) -> None:
        """New text."""

    def finish(self, summary: Summary) -> None:
        """The answer is complete."""

    def fail(self, error: BackendError) -> None:
        """There is no answer, or no more of it."""


@dataclass
class Job:
    """One answer to make."""

    prompt: list[int]
    sampling: Sampling
    reply: Reply


RunJob = Callable[[Job], Summary]


class Worker:
    """The queue and its thread. `run` makes one answer; `log_error` takes a line about an unexpected failure."""

    def __init__(self, run: RunJob, queue_size: int, log_error: Callable[[str], None]) -> None:
        self._run = run
        self._log_error = log_error
        self._size = queue_size
        self._queue: queue.Queue[Job | None] = queue.Queue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="llamacpp-worker")
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job. Raises Unavailable at once when the queue is full or closed."""
        with self._lock:
            if self._closed:
                raise Unavailable("the model is being unloaded")
            if self._waiting >= self._size:
                raise Unavailable(f"{self._waiting} requests are waiting, as many as queue_size allows; try later")
            self._waiting += 1
            self._queue.put(job)

    def close(self) -> None:
        """Refuse new jobs, let the queued ones end, then end the thread."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _loop(self) -> None:
        while (job := self._queue.get()) is not None:
            with self._lock:
                self._waiting -= 1
            try:
                self._answer(job)
            except Exception as error:  # sending failed: the thread must outlive it
                self._log_error(f"an answer could not be delivered: {error!r}")

    def _answer(self, job: Job) -> None:
        try:
            if job.reply.client_gone():
                raise Cancelled("the request was cancelled while it waited")
            summary = self._run(job)
        except BackendError as error:
            if not isinstance(error, Cancelled):
                self._log_error(f"a request failed: {error}")
            job.reply.fail(error)
        except Exception as error:  # whatever it is, the client gets its one final response
            self._log_error(f"a request failed: {error!r}")
            job.reply.fail(EngineFailure(f"internal error: {error!r}"))
        else:
            job.reply.finish(summary)
