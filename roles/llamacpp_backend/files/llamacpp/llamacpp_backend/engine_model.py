"""The engine's Triton model: takes requests from Triton and from fronts, and hands them to the engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from .delivery import Outbox, Watcher
from .engine.job import Job
from .errors import BackendError, EngineFailure
from .link import EngineLink, LinkReply, link_path
from .opening import Opened, open_model
from .requests import RawRequest, parse_generate
from .settings import Place
from .triton_adapter import TritonReply, log, read_request

# Prompts are tokenized and grammars tried here, so that one that takes long does not hold up the others.
INTAKE_THREADS = 4


class EngineModel:
    """Serves requests with an opened model: Triton's by `execute`, those of a front over its link."""

    def __init__(self, opened: Opened, place: Place) -> None:
        self._opened = opened
        self._outbox = Outbox()
        self._watcher = Watcher()
        self._intake = ThreadPoolExecutor(INTAKE_THREADS, thread_name_prefix="llamacpp-intake")
        self._link = EngineLink(link_path(place.model_name, place.version), self._take_link)

    def execute(self, requests: Sequence[Any]) -> None:
        """Take Triton's requests over."""
        for request in requests:
            self._intake.submit(self._take_triton, request)

    def finalize(self) -> None:
        """Let all accepted requests end, then free the model."""
        self._link.close()
        self._intake.shutdown(wait=True)
        self._opened.engine.close()
        self._outbox.close()
        self._watcher.close()
        self._link.join()
        self._opened.close()

    def _take_triton(self, request: Any) -> None:
        reply = TritonReply(request, self._outbox.put)
        if self._take(partial(read_request, request), reply, stream_default=True):
            self._watcher.add(reply)

    def _take_link(self, read: Callable[[], RawRequest], reply: LinkReply) -> None:
        self._take(read, reply, stream_default=False)

    def _take(self, read: Callable[[], RawRequest], reply: TritonReply | LinkReply, *, stream_default: bool) -> bool:
        """Check and queue what `read` returns; a refused one is answered at once. Whether it was queued."""
        try:
            try:
                self._accept(read(), reply, stream_default)
            except BackendError as error:
                reply.fail(error)
            except Exception as error:  # whatever it is, the client gets its one final response
                log("error", f"a request could not be read: {error!r}")
                reply.fail(EngineFailure(f"internal error: {error!r}"))
            else:
                return True
        except Exception as error:  # sending failed: the other requests must not suffer
            log("error", f"an answer could not be delivered: {error!r}")
        return False

    def _accept(self, raw: RawRequest, reply: TritonReply | LinkReply, stream_default: bool) -> None:
        arrived = time.monotonic()
        opened = self._opened
        wanted = parse_generate(raw, opened.defaults, opened.n_ctx, stream_default=stream_default)
        sampling = opened.fit(wanted.sampling)
        prompt = opened.prompts.encode(wanted)
        reply.stream = wanted.stream
        deadline = arrived + sampling.timeout_ms / 1000 if sampling.timeout_ms else None
        opened.engine.submit(Job(prompt, sampling, reply, deadline))


def open_engine(place: Place) -> EngineModel:
    """Load the model version at `place`. Raises LoadError."""
    opened = open_model(place)
    return EngineModel(opened, place)
