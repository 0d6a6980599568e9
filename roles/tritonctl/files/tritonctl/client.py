"""HTTP to Triton over its unix socket: one connection per request, closed at once.

An idle connection would make every stop of the server wait for its whole exit time-out and then fail, so
nothing is kept alive here.
"""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from typing import Any

from tritonctl.deadline import Deadline
from tritonctl.errors import AccessDenied, BadInput, ServerRefused, TimedOut, Unreachable
from tritonctl.names import check_unit_name

ADMIN_GROUP = "triton-admin"
_BUSY_RETRY_S = 0.05


@dataclass(frozen=True)
class IndexEntry:
    """One line of the repository index. state is None for a model that was never loaded."""

    name: str
    version: int | None
    state: str | None
    reason: str | None


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Client:
    """Triton's HTTP API at a unix socket.

    Every method takes the deadline it must keep and raises TimedOut, Unreachable, or ServerRefused.
    """

    def __init__(self, socket_path: str) -> None:
        self.socket_path = socket_path

    def live(self, deadline: Deadline) -> bool:
        return self._request("GET", "/v2/health/live", None, deadline)[0] == 200

    def ready(self, deadline: Deadline) -> bool:
        """What the server says of itself. It stays True when a model's process has died."""
        return self._request("GET", "/v2/health/ready", None, deadline)[0] == 200

    def server_version(self, deadline: Deadline) -> str:
        return str(self._object("GET", "/v2", None, deadline).get("version"))

    def index(self, deadline: Deadline) -> list[IndexEntry]:
        """All models of the repository, one entry per known version."""
        answer = self._json("POST", "/v2/repository/index", {}, deadline)
        if not isinstance(answer, list):
            raise self._garbage(f"a repository index that is not a list: {_clip(answer)}")
        return [self._index_entry(item) for item in answer]

    def config(self, unit: str, deadline: Deadline) -> dict[str, Any]:
        """The configuration that is being served, not the one on disk."""
        return self._object("GET", f"/v2/models/{check_unit_name(unit)}/config", None, deadline)

    def load(self, unit: str, deadline: Deadline) -> None:
        """Ask for a load; Triton answers when it is over."""
        self._json("POST", f"/v2/repository/models/{check_unit_name(unit)}/load", {}, deadline)

    def unload(self, unit: str, deadline: Deadline) -> None:
        """Ask for an unload; Triton answers at once, and the unload goes on behind it."""
        self._json("POST", f"/v2/repository/models/{check_unit_name(unit)}/unload", {}, deadline)

    def infer(self, model: str, request: dict[str, Any], deadline: Deadline) -> dict[str, Any]:
        return self._object("POST", f"/v2/models/{check_unit_name(model)}/infer", request, deadline)

    def _index_entry(self, item: object) -> IndexEntry:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise self._garbage(f"a repository index with an entry without a name: {_clip(item)}")
        version = item.get("version")
        return IndexEntry(
            name=item["name"],
            version=int(version) if isinstance(version, str) and version.isdecimal() else None,
            state=item.get("state"),
            reason=item.get("reason") or None,
        )

    def _object(self, method: str, path: str, payload: object, deadline: Deadline) -> dict[str, Any]:
        answer = self._json(method, path, payload, deadline)
        if not isinstance(answer, dict):
            raise self._garbage(f"something that is no JSON object to {method} {path}: {_clip(answer)}")
        return answer

    def _json(self, method: str, path: str, payload: object, deadline: Deadline) -> object:
        """The parsed body, None when it is empty.

        Raises ServerRefused for a status other than 200, and for an `error` in the body whatever the status.
        """
        body = None if payload is None else json.dumps(payload).encode()
        status, raw = self._request(method, path, body, deadline)
        try:
            answer: object = json.loads(raw) if raw.strip() else None
        except ValueError:
            if status == 200:
                raise self._garbage(f"something that is no JSON to {method} {path}: {_clip(raw)}") from None
            answer = None
        error = answer.get("error") if isinstance(answer, dict) else None
        if status != 200 or error is not None:
            raise ServerRefused(status, str(error or _clip(raw) or f"HTTP {status} without a text"))
        return answer

    def _request(self, method: str, path: str, body: bytes | None, deadline: Deadline) -> tuple[int, bytes]:
        what = f"{method} {path}"
        while True:
            # A time-out of 0 would mean "don't block" to the socket.
            connection = _UnixConnection(self.socket_path, max(deadline.remaining, 0.001))
            try:
                connection.request(method, path, body, {"Connection": "close", "Content-Type": "application/json"})
                return self._read(connection, deadline, what)
            except BlockingIOError:  # the server's queue of new connections is full
                if deadline.expired:
                    raise self._timed_out(what, deadline) from None
                deadline.sleep(_BUSY_RETRY_S)
            except TimeoutError:
                raise self._timed_out(what, deadline) from None
            except (FileNotFoundError, NotADirectoryError):
                raise Unreachable(
                    f"no server at {self.socket_path}: there is no such socket. "
                    "Is it running? See: systemctl status triton"
                ) from None
            except PermissionError:
                raise AccessDenied(
                    f"permission denied for {self.socket_path}: run as root or as a member of the group "
                    f"{ADMIN_GROUP} (usermod -aG {ADMIN_GROUP} USER, then log in again)"
                ) from None
            except ConnectionRefusedError:
                raise Unreachable(
                    f"no server at {self.socket_path}: connection refused, a socket that nobody serves any "
                    "more. See: systemctl status triton"
                ) from None
            except (ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected):
                raise Unreachable(f"the server went away during {what}. See: journalctl -u triton") from None
            except http.client.HTTPException as error:
                raise self._garbage(
                    f"something that is not HTTP, or not whole, to {what}: {type(error).__name__} {error}"
                ) from None
            except OSError as error:
                raise BadInput(f"can't use {self.socket_path} as a socket: {error}") from None
            finally:
                connection.close()

    def _read(self, connection: _UnixConnection, deadline: Deadline, what: str) -> tuple[int, bytes]:
        with connection.getresponse() as response:
            parts = []
            while part := response.read(1 << 16):
                parts.append(part)
                if deadline.expired:
                    raise self._timed_out(what, deadline)
            # read(n) says nothing of a body that ends early.
            if response.length:
                raise self._garbage(f"an answer cut short by {response.length} bytes to {what}")
            return response.status, b"".join(parts)

    def _garbage(self, what: str) -> Unreachable:
        return Unreachable(f"the server at {self.socket_path} answered {what}")

    def _timed_out(self, what: str, deadline: Deadline) -> TimedOut:
        return TimedOut(f"no answer to {what} within {deadline.seconds:g} s")


def _clip(value: object, limit: int = 200) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= limit else text[:limit] + "..."
