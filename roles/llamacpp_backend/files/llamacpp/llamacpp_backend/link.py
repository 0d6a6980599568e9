"""The private way from a front to its engine: a unix socket of the engine's process, one connection for each request.

The front sends one line of JSON and gets one back; by closing the connection it cancels. Triton's own way, a call
inside the server (BLS), is not used: it frees Python objects on a thread without the interpreter's lock, which ends
a process with Python 3.12 or later, turns every error into INTERNAL, and does not hand cancellations on.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .answers import Collector, Outputs
from .engine.job import Summary, TokenInfo
from .errors import BackendError, Cancelled, EngineFailure, Unavailable, from_code
from .requests import RawRequest

POLL_SECONDS = 0.1  # how often a front asks Triton whether its client has gone: each time costs a message to the server
SEND_SECONDS = 5  # a front reads at once; one that does not must not hold the engine's thread
BACKLOG = 1024


def link_path(model_name: str, version: int) -> Path:
    """Where the engine's model of this name and version listens: below the service's run directory, which systemd
    names in RUNTIME_DIRECTORY. The name is hashed, as a socket's path may have 107 bytes.
    """
    base = Path(os.environ.get("RUNTIME_DIRECTORY", "/run/triton"))
    digest = hashlib.sha256(f"{model_name}/{version}".encode()).hexdigest()[:16]
    return base / "engines" / f"{digest}.sock"


class LinkReply:
    """Answers the request of one connection, once, whatever `stream` says. Implements engine.job.Reply."""

    stream = False

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._collector = Collector()
        self._gone = False

    def client_gone(self) -> bool:
        """Whether the front has closed the connection."""
        return self._gone

    def piece(self, index: int, text: str, tokens: Sequence[TokenInfo]) -> None:
        """Keep a piece for the one answer."""
        self._collector.piece(index, text, tokens)

    def keep_alive(self) -> None:
        """Nothing: a front that has gone has closed the connection."""

    def finish(self, answers: Sequence[Summary]) -> None:
        """Send the whole answer."""
        self._send({"outputs": self._collector.outputs(answers)})

    def fail(self, error: BackendError) -> None:
        """Send an error."""
        self._send({"error": {"code": error.code, "message": str(error)}})

    def wait_for_close(self) -> None:
        """Return when the front closes the connection, after its answer or before."""
        try:
            while self._connection.recv(4096):
                pass
        except OSError:  # a front that was killed
            pass
        self._gone = True

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._connection.sendall(_line(message))
        except OSError:
            if not self._gone:
                self._connection.close()
                raise


class EngineLink:
    """The engine's end. `take` gets each request with its reply, from a thread of its own, and may not raise."""

    def __init__(self, path: Path, take: Callable[[Callable[[], RawRequest], LinkReply], None]) -> None:
        self._take = take
        self._path = path
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Bound beside its place and moved there: a left-over of a killed process does not matter, and when a model is
        # loaded anew beside its old self, fronts find the new one from this moment on.
        beside = path.with_suffix(f".{os.getpid()}")
        beside.unlink(missing_ok=True)
        self._listener.bind(str(beside))
        self._listener.listen(BACKLOG)
        self._inode = beside.stat().st_ino
        beside.replace(path)
        self._acceptor = threading.Thread(target=self._accept, name="llamacpp-link")
        self._acceptor.start()

    def close(self) -> None:
        """Take no more connections. Those that are open live on. May be called again."""
        try:
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        except FileNotFoundError:
            pass
        with suppress(OSError):  # it is closed already
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the acceptor
        self._acceptor.join()
        self._listener.close()

    def join(self) -> None:
        """Wait until the fronts have closed their connections, as they do once they have their answers."""
        deadline = time.monotonic() + SEND_SECONDS
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(0, deadline - time.monotonic()))

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            with self._lock:
                self._threads.add(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as lines:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_SECONDS, 0))
                reply = LinkReply(connection)
                line = lines.readline()
                if line:  # else the front was gone before it asked
                    self._take(lambda: RawRequest(**json.loads(line)), reply)
                    reply.wait_for_close()
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())


class EngineClient:
    """The front's end."""

    def __init__(self, engine_model: str, version: int) -> None:
        self._engine_model = engine_model
        self._path = str(link_path(engine_model, version))

    def ask(self, raw: RawRequest, client_gone: Callable[[], bool]) -> Outputs:
        """The engine's answer. Waits for it, asking `client_gone` meanwhile. Raises BackendError."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            try:
                connection.connect(self._path)
            except OSError as error:
                raise Unavailable(f"model '{self._engine_model}' is not loaded ({error.strerror})") from error
            try:
                connection.sendall(_line({"inputs": raw.inputs, "parameters": raw.parameters}))
                answer = self._receive(connection, client_gone)
            except OSError as error:
                raise self._ended() from error
        if "error" in answer:
            raise from_code(answer["error"]["code"], answer["error"]["message"])
        return dict(answer["outputs"])

    def _receive(self, connection: socket.socket, client_gone: Callable[[], bool]) -> dict[str, Any]:
        readable = select.poll()
        readable.register(connection, select.POLLIN)
        data = bytearray()
        while not data.endswith(b"\n"):
            if readable.poll(1000 * POLL_SECONDS):
                part = connection.recv(65536)
                if not part:
                    raise self._ended()
                data += part
            elif client_gone():
                raise Cancelled("the request was cancelled")
        return dict(json.loads(data))

    def _ended(self) -> EngineFailure:
        return EngineFailure(f"the process of model '{self._engine_model}' ended before it had answered")


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode("ascii") + b"\n"
