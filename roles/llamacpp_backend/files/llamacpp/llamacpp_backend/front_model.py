"""The front's Triton model: one answer per request, by a request to the engine's process over its private link.

Every request waits on a thread of its own, so that many can be under way in one instance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from .answers import Outputs
from .errors import BackendError, EngineFailure
from .link import EngineClient
from .requests import RawRequest, for_engine
from .settings import Place, read_front_settings
from .triton_adapter import TritonReply, log, read_request

# More than any engine's queue holds: what can't be queued there comes back at once, so threads never run out.
MAX_WAITING = 1024


class Engine(Protocol):
    """The engine as a front sees it."""

    def ask(self, raw: RawRequest, client_gone: Callable[[], bool]) -> Outputs:
        """The answer; waits. Raises BackendError."""


class FrontModel:
    """Hands requests on to the engine and its answers back."""

    def __init__(self, engine: Engine, log_error: Callable[[str], None]) -> None:
        self._engine = engine
        self._log_error = log_error
        self._pool = ThreadPoolExecutor(MAX_WAITING, thread_name_prefix="llamacpp-front")

    def execute(self, requests: Sequence[Any]) -> None:
        """Start requests; each is answered from its own thread."""
        for request in requests:
            self._pool.submit(self._relay, request, TritonReply(request, _at_once))

    def finalize(self) -> None:
        """Let running requests end, then end all threads."""
        self._pool.shutdown(wait=True)

    def _relay(self, request: Any, reply: TritonReply) -> None:
        try:
            outputs = self._engine.ask(for_engine(read_request(request)), lambda: not reply.look())
        except BackendError as error:
            reply.fail(error)
        except Exception as error:  # whatever it is, the client gets its one response
            self._log_error(f"a request failed: {error!r}")
            reply.fail(EngineFailure(f"internal error: {error!r}"))
        else:
            reply.answer(outputs)


def _at_once(deliver: Callable[[], None]) -> None:
    deliver()  # each request has a thread of its own, which may wait


def open_front(place: Place) -> FrontModel:
    """Open the front at `place`. Raises LoadError."""
    engine_model = read_front_settings(place.version_dir / "model.json")
    log("info", f"front {place.model_name} answers by model {engine_model}")
    return FrontModel(EngineClient(engine_model, place.version), lambda line: log("error", line))
