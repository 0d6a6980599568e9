"""The front's Triton model: one answer per request, by a call to the engine's model in the same server.

Every request waits on a thread of its own, so that many can be under way in one instance. Triton does not hand a
cancellation on to a called model, so a watcher polls for clients that have gone and tells the engine by key.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from .errors import BackendError, EngineFailure
from .requests import front_parameters
from .settings import Place, read_front_settings
from .triton_adapter import EngineCall, FrontReply, log, read_parameters

# More than any engine's queue holds: what can't be queued there comes back at once, so threads never run out.
MAX_WAITING = 1024
POLL_SECONDS = 0.05


class Engine(Protocol):
    """The engine as a front sees it; tensors are opaque here."""

    def ask(self, inputs: Sequence[Any], parameters: Mapping[str, Any], key: str) -> list[Any]:
        """The answer's tensors; waits. Raises BackendError."""

    def cancel(self, key: str) -> None:
        """End the request with this key."""


class Watcher:
    """Polls running requests and cancels those whose client has gone."""

    def __init__(self, cancel: Callable[[str], None], log_error: Callable[[str], None]) -> None:
        self._cancel = cancel
        self._log_error = log_error
        self._lock = threading.Lock()
        self._running: dict[str, Callable[[], bool]] = {}
        self._changed = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="llamacpp-watcher")
        self._thread.start()

    def add(self, key: str, client_gone: Callable[[], bool]) -> None:
        """Watch a request."""
        with self._lock:
            self._running[key] = client_gone
        self._changed.set()

    def remove(self, key: str) -> None:
        """The request has ended."""
        with self._lock:
            self._running.pop(key, None)

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._changed.set()
        self._thread.join()

    def _loop(self) -> None:
        pause = threading.Event()  # never set: a sleep
        while not self._closed:
            self._changed.wait()
            with self._lock:
                running = dict(self._running)
                if not running:
                    self._changed.clear()  # an idle front sleeps
                    if self._closed:
                        return
            for key, client_gone in running.items():
                self._check(key, client_gone)
            pause.wait(POLL_SECONDS)

    def _check(self, key: str, client_gone: Callable[[], bool]) -> None:
        """Cancel again at each poll until the request has ended: the first may have overtaken it."""
        try:
            if client_gone():
                self._cancel(key)
        except Exception as error:  # the watcher must outlive it
            self._log_error(f"a request could not be cancelled: {error!r}")


class FrontModel:
    """Hands requests on to the engine and its answers back."""

    def __init__(self, engine: Engine, log_error: Callable[[str], None]) -> None:
        self._engine = engine
        self._log_error = log_error
        self._pool = ThreadPoolExecutor(MAX_WAITING, thread_name_prefix="llamacpp-front")
        self._watcher = Watcher(engine.cancel, log_error)

    def execute(self, requests: Sequence[Any]) -> None:
        """Start requests; each is answered from its own thread."""
        for request in requests:
            reply = FrontReply(request)
            self._pool.submit(self._serve, request, reply)

    def finalize(self) -> None:
        """Let running requests end, then end all threads."""
        self._pool.shutdown(wait=True)
        self._watcher.close()

    def _serve(self, request: Any, reply: FrontReply) -> None:
        try:
            self._relay(request, reply)
        except Exception as error:  # sending failed: nothing more can be told to this client
            self._log_error(f"an answer could not be delivered: {error!r}")

    def _relay(self, request: Any, reply: FrontReply) -> None:
        key = secrets.token_hex(16)
        self._watcher.add(key, reply.client_gone)
        try:
            answer = self._engine.ask(reply.inputs, front_parameters(read_parameters(request)), key)
        except BackendError as error:
            reply.fail(error)
        except Exception as error:  # whatever it is, the client gets its one response
            self._log_error(f"a request failed: {error!r}")
            reply.fail(EngineFailure(f"internal error: {error!r}"))
        else:
            reply.answer(answer)
        finally:
            self._watcher.remove(key)


def open_front(place: Place) -> FrontModel:
    """Open the front at `place`. Raises LoadError."""
    engine_model = read_front_settings(place.version_dir / "model.json")
    log("info", f"front {place.model_name} answers by model {engine_model}")
    return FrontModel(EngineCall(engine_model), lambda line: log("error", line))
