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
SEND_SECONDS = 5  # a front reads and writes at once; one that was stopped must not hold up an unload
RETRY_SECONDS = 0.05
BACKLOG = 1024


def link_path(model_name: str, version: int) -> Path:
    """Where the engine's model of this name and version listens: below the service's run directory, which systemd
    names in RUNTIME_DIRECTORY. The name is hashed, as a socket's path may have 107 bytes.
    """
    base = Path(os.environ.get("RUNTIME_DIRECTORY", "/run/triton"))
    digest = hashlib.sha256(f"{model_name}/{version}".encode()).hexdigest()[:16]
    return base / "engines" / f"{digest}.sock"


class LinkReply:
    """Answers the request of one connection, once, whatever `stream` says. Implements engine.job.Reply.

    The engine's thread only leaves the answer here; the connection's own thread makes it into text and sends it.
    """

    stream = False

    def __init__(self) -> None:
        self._collector = Collector()
        self._gone = False
        self._ended = threading.Event()
        self._message: Callable[[], dict[str, Any]] = dict

    def client_gone(self) -> bool:
        """Whether the front has closed the connection."""
        return self._gone

    def leave(self) -> None:
        """Note that the front has closed the connection."""
        self._gone = True

    def piece(self, index: int, text: str, tokens: Sequence[TokenInfo]) -> None:
        """Keep a piece for the one answer."""
        self._collector.piece(index, text, tokens)

    def keep_alive(self) -> None:
        """Nothing: a front that has gone has closed the connection."""

    def finish(self, answers: Sequence[Summary]) -> None:
        """The whole answer is there."""
        self._message = lambda: {"outputs": self._collector.outputs(answers)}
        self._ended.set()

    def fail(self, error: BackendError) -> None:
        """There is an error in place of an answer."""
        self._message = lambda: {"error": {"code": error.code, "message": str(error)}}
        self._ended.set()

    def wait(self) -> dict[str, Any]:
        """What to send, once it is there."""
        self._ended.wait()
        return self._message()


class EngineLink:
    """The engine's end: a thread for each connection, and one that accepts and sees which fronts have gone.

    `take` gets each request with its reply on the connection's thread, sees to it that the reply is answered once,
    and may not raise.
    """

    def __init__(
        self,
        path: Path,
        take: Callable[[Callable[[], RawRequest], LinkReply], None],
        log_error: Callable[[str], None],
    ) -> None:
        self._take = take
        self._log_error = log_error
        self._path = path
        self._threads: set[threading.Thread] = set()
        self._waiting: dict[int, LinkReply] = {}  # by file descriptor
        self._lock = threading.Lock()
        self._closing = self._joined = False
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        # Bound beside its place and moved there: a left-over of a killed process does not matter, and when a model is
        # loaded anew beside its old self, fronts find the new one from this moment on.
        beside = path.with_suffix(f".{os.getpid()}")
        beside.unlink(missing_ok=True)
        self._listener.bind(str(beside))
        self._listener.listen(BACKLOG)
        self._inode = beside.stat().st_ino
        beside.replace(path)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._events = select.epoll()
        self._events.register(self._listener, select.EPOLLIN)
        self._events.register(self._wake, select.EPOLLIN)
        self._watcher = threading.Thread(target=self._watch, name="llamacpp-link")
        self._watcher.start()

    def close(self) -> None:
        """Take no more connections. Those that are open live on. May be called again."""
        if self._closing:
            return
        with suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        self._closing = True
        os.eventfd_write(self._wake, 1)

    def join(self) -> None:
        """After `close` and once all replies are answered: wait until they are sent. May be called again."""
        while True:
            with self._lock:
                thread = next(iter(self._threads), None)
            if thread is None:
                break
            thread.join()
        if not self._joined:
            self._joined = True
            os.eventfd_write(self._wake, 1)
            self._watcher.join()
            self._events.close()
            os.close(self._wake)

    def _watch(self) -> None:
        is_open = True
        while not self._joined:
            for number, _ in self._events.poll():
                if number == self._wake:
                    with suppress(BlockingIOError):
                        os.eventfd_read(self._wake)
                elif is_open and number == self._listener.fileno():
                    self._accept()
                else:
                    self._see_gone(number)
            if self._closing and is_open:
                self._accept()  # those that came before the path was taken away
                self._events.unregister(self._listener)
                self._listener.close()
                is_open = False

    def _accept(self) -> None:
        """Accept what has come. Out of files or threads: those who wait get their turn, or an end, later."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._log_error(f"the engine's link can't accept a connection now: {error}")
                time.sleep(RETRY_SECONDS)
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            try:
                with self._lock:  # so that `join` sees no thread that is not started yet
                    thread.start()
                    self._threads.add(thread)
            except RuntimeError as error:
                self._log_error(f"the engine's link can't serve a connection: {error}")
                connection.close()

    def _see_gone(self, number: int) -> None:
        with self._lock:
            reply = self._waiting.pop(number, None)
            if reply is not None:
                self._events.unregister(number)
                reply.leave()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as lines:
                limit = struct.pack("ll", SEND_SECONDS, 0)
                for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                    connection.setsockopt(socket.SOL_SOCKET, option, limit)
                if line := lines.readline():  # else the front was gone before it asked
                    self._answer(connection, line)
        except Exception as error:  # a front that was killed, or stopped: nothing can be told to it
            self._log_error(f"an answer could not be delivered to a front: {error!r}")
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _answer(self, connection: socket.socket, line: bytes) -> None:
        reply, number = LinkReply(), connection.fileno()
        with self._lock:
            self._waiting[number] = reply
            self._events.register(number, select.EPOLLRDHUP)
        try:
            self._take(lambda: RawRequest(**json.loads(line)), reply)
            message = reply.wait()
        finally:
            with self._lock:
                if self._waiting.pop(number, None) is not None:
                    self._events.unregister(number)
        if not reply.client_gone():
            connection.sendall(_line(message))


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
