"""A fake Triton on a unix socket, only for what the real one can't be made to do on demand."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

Reply = tuple[int, object]


class FakeTriton:
    """Answers by rules: "METHOD path" to a reply (status, JSON), raw bytes, or a function of the body."""

    def __init__(self, socket_path: Path) -> None:
        self.socket_path = str(socket_path)
        self.rules: dict[str, Reply | bytes | Callable[[Any], Reply]] = {
            "GET /v2/health/live": (200, None),
            "GET /v2/health/ready": (200, None),
            "GET /v2": (200, {"name": "triton", "version": "2.51.0"}),
        }
        self.requests: list[str] = []
        self.connection_headers: list[str | None] = []
        self.over = threading.Event()

    def index(self, *entries: dict[str, str]) -> None:
        self.rules["POST /v2/repository/index"] = (200, list(entries))

    def serves(self, unit: str, revision: str) -> None:
        parameters = {"revision": {"string_value": revision}}
        self.rules[f"GET /v2/models/{unit}/config"] = (200, {"name": unit, "parameters": parameters})


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gave up is part of the game."""


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeTriton]:
    triton = FakeTriton(tmp_path / "http.sock")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def address_string(self) -> str:
            return "unix"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            key = f"{self.command} {self.path}"
            triton.requests.append(key)
            triton.connection_headers.append(self.headers.get("Connection"))
            rule = triton.rules.get(key, (404, {"error": f"no rule for {key}"}))
            if isinstance(rule, bytes):
                self.wfile.write(rule)
                self.close_connection = True
                return
            status, document = rule(json.loads(body or b"null")) if callable(rule) else rule
            raw = b"" if document is None else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = answer

    with _Server(triton.socket_path, Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield triton
        triton.over.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def write_desired(tmp_path: Path) -> Callable[..., str]:
    """Writes a desired set of entries that have at least a name; returns its path."""

    def write(*entries: dict[str, Any]) -> str:
        models = [
            {
                "version": 1,
                "state": "loaded",
                "revision": "0123456789ab",
                "units": [f"{entry['name']}_stream", entry["name"]],
                **entry,
            }
            for entry in entries
        ]
        path = tmp_path / "models.json"
        path.write_text(json.dumps({"schema": 1, "models": models}), encoding="utf-8")
        return str(path)

    return write
