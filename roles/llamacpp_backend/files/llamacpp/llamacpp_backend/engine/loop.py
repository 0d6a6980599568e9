"""The engine: jobs in from any thread, all work on a thread of its own, which sleeps when there is none."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from ..errors import BadRequest, EngineFailure, Unavailable
from .core import Core, EngineLimits
from .job import Job
from .metrics import Metrics
from .runner import Runner


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Answers with a slot and without one, and slots without an answer, at one moment."""

    running: int
    waiting: int
    free_slots: int


class Engine:
    """Continuous batching over the slots of a runner, which no other thread may touch until `close` has returned."""

    def __init__(self, runner: Runner, limits: EngineLimits, log_error: Callable[[str], None]) -> None:
        """Returns once the runner is warm; raises what that raises, and ValueError when its n_batch is below n_slots.

        `log_error` takes a line about a failure.
        """
        self.metrics = Metrics(runner.n_ctx)
        self._runner = runner
        self._queue_size = limits.queue_size
        self._log_error = log_error
        self._core = Core(runner, limits, self.metrics, time.monotonic, log_error)
        self._wake = threading.Condition()
        self._inbox: deque[tuple[Job, float]] = deque()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="llamacpp-engine")
        self._warm: Future[None] = Future()
        self._thread.start()
        self._warm.result()

    def submit(self, job: Job) -> None:
        """Queue a job. Raises Unavailable at once when the queue is full or closing, BadRequest for a prompt without
        tokens or without room for an answer.
        """
        self._check(job)
        with self._wake:
            if self._is_closing:
                self.metrics.rejections["closing"].value += 1
                raise Unavailable("the model is being unloaded")
            waiting = len(self._inbox) + self._core.n_unstarted
            if waiting >= self._queue_size + self._core.n_free:
                self.metrics.rejections["queue_full"].value += 1
                raise Unavailable(f"{waiting} requests are waiting, as many as queue_size allows; try later")
            self._inbox.append((job, time.monotonic()))
            self._wake.notify()

    def close(self) -> None:
        """Refuse new jobs, let the accepted ones end, then end the thread. May be called again."""
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        self._thread.join()

    def snapshot(self) -> Snapshot:
        """What goes on now; brings the gauges up to date too. May be a step behind itself in single figures."""
        core = self._core
        core.update_gauges()
        with self._wake:
            waiting = len(self._inbox) + core.n_waiting
        return Snapshot(running=core.n_running, waiting=waiting, free_slots=core.n_free)

    def _check(self, job: Job) -> None:
        n_ctx = min(self._runner.n_ctx, self._runner.n_cells)
        if not 1 <= len(job.prompt) < n_ctx:
            raise BadRequest(f"the prompt has {len(job.prompt)} tokens; allowed are 1 to {n_ctx - 1} (n_ctx - 1)")

    def _run(self) -> None:
        # On this thread, as on all later steps: OpenMP keeps threads for each one that ever computed, and where they
        # are more than the CPUs it lets them wait in a slower way.
        try:
            self._runner.warm_up()
        except Exception as error:
            self._warm.set_exception(error)
            return
        self._warm.set_result(None)
        while True:
            try:
                if not self._take_in():
                    return
                self._core.turn()
            except Exception as error:  # whatever it is, every job gets its final answer and the next one is served
                self._log_error(f"the engine failed: {error!r}")
                self._abandon(EngineFailure(f"internal error: {error!r}"))

    def _take_in(self) -> bool:
        """Hand new jobs to the core, after waiting for them if it has no others; False at the end."""
        core = self._core
        with self._wake:
            while not (self._inbox or core.is_busy):
                if self._is_closing:
                    return False
                self._wake.wait()
            while self._inbox:
                core.accept(*self._inbox.popleft())
        return True

    def _abandon(self, error: EngineFailure) -> None:
        try:
            self._core.abandon(error)
        except Exception as failure:
            self._log_error(f"the slots could not be emptied: {failure!r}")
