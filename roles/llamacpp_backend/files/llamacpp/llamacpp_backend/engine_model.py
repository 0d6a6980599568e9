"""The engine's Triton model: takes requests from Triton and from fronts, and hands them to the engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

from .delivery import Outbox, Watcher
from .engine.job import Job
from .errors import BackendError, EngineFailure, LoadError, Unavailable
from .link import EngineLink, LinkReply, link_path
from .opening import Opened, open_model
from .requests import GenerateRequest, RawRequest, parse_generate
from .settings import Place
from .triton_adapter import TritonReply, log, read_request

# Prompts are tokenized here, and constraints tried on other threads, so that those which take long hold up no others.
INTAKE_THREADS = 4
TRIAL_THREADS = 4
MAX_INTAKE = 1024  # requests that are read, or wait to be


class EngineModel:
    """Serves requests with an opened model: Triton's by `execute`, those of a front over its link."""

    def __init__(self, opened: Opened, place: Place) -> None:
        """Raises OSError where the link can't be made; nothing is left then but the opened model."""
        self._opened = opened
        self._room = threading.BoundedSemaphore(MAX_INTAKE)
        with ExitStack() as started:
            self._outbox = Outbox(_log_error)
            started.callback(self._outbox.close)
            self._watcher = Watcher(_log_error)
            started.callback(self._watcher.close)
            self._intake = ThreadPoolExecutor(INTAKE_THREADS, thread_name_prefix="llamacpp-intake")
            self._trials = ThreadPoolExecutor(TRIAL_THREADS, thread_name_prefix="llamacpp-trial")
            self._link = EngineLink(link_path(place.model_name, place.version), self._take_link, _log_error)
            started.pop_all()

    def execute(self, requests: Sequence[Any]) -> None:
        """Take Triton's requests over."""
        arrived = time.monotonic()
        for request in requests:
            reply = TritonReply(request, self._outbox.put)
            if self._room.acquire(blocking=False):
                self._intake.submit(self._take_triton, request, reply, arrived)
            else:
                reply.fail(Unavailable(f"{MAX_INTAKE} requests wait to be read; try later"))

    def finalize(self) -> None:
        """Let all accepted requests end, then free the model."""
        self._link.close()
        self._intake.shutdown(wait=True)
        self._trials.shutdown(wait=True)
        self._opened.engine.close()
        self._link.join()
        self._outbox.close()
        self._watcher.close()
        self._opened.close()

    def _take_triton(self, request: Any, reply: TritonReply, arrived: float) -> None:
        def queue(wanted: GenerateRequest) -> None:
            with self._answering(reply):
                self._queue(wanted, reply, arrived)
                self._watcher.add(reply)
            self._room.release()

        with self._answering(reply):
            wanted = self._read(read_request(request), stream_default=True)
            reply.stream = wanted.stream
            if wanted.sampling.json_schema is not None or wanted.sampling.grammar is not None:
                self._trials.submit(queue, wanted)
            else:
                queue(wanted)
            return
        self._room.release()

    def _take_link(self, read: Callable[[], RawRequest], reply: LinkReply) -> None:
        arrived = time.monotonic()
        with self._answering(reply):
            self._queue(self._read(read(), stream_default=False), reply, arrived)

    @contextmanager
    def _answering(self, reply: TritonReply | LinkReply) -> Iterator[None]:
        """Whatever happens within, the client gets its one final response."""
        try:
            yield
        except BackendError as error:
            reply.fail(error)
        except Exception as error:
            _log_error(f"a request could not be read: {error!r}")
            reply.fail(EngineFailure(f"internal error: {error!r}"))

    def _read(self, raw: RawRequest, *, stream_default: bool) -> GenerateRequest:
        return parse_generate(raw, self._opened.defaults, self._opened.n_ctx, stream_default=stream_default)

    def _queue(self, wanted: GenerateRequest, reply: TritonReply | LinkReply, arrived: float) -> None:
        sampling = self._opened.fit(wanted.sampling)
        prompt = self._opened.prompts.encode(wanted)
        deadline = arrived + sampling.timeout_ms / 1000 if sampling.timeout_ms else None
        self._opened.engine.submit(Job(prompt, sampling, reply, deadline))


def open_engine(place: Place) -> EngineModel:
    """Load the model version at `place`. Raises LoadError."""
    opened = open_model(place)
    try:
        return EngineModel(opened, place)
    except OSError as error:
        opened.close()
        raise LoadError(f"the link of {place.model_name} can't be made: {error}") from error


def _log_error(line: str) -> None:
    log("error", line)
