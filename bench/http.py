"""As much of an HTTP/1.1 client as the load generator needs. It costs little: it shares the cores with the server.

One request per connection: an idle one would keep Triton from stopping.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

LIMIT = 2**20  # longest line; an event with all that was asked for fits


class HttpError(Exception):
    """The server answered with something else than 200, or not in HTTP."""


@dataclass(frozen=True)
class Event:
    """One piece of an answer's body: its JSON and when it was read (time.monotonic, seconds)."""

    data: Mapping[str, Any]
    at: float


async def post(host: str, port: int, path: str, body: Mapping[str, Any]) -> AsyncGenerator[Event, None]:
    """POST JSON and yield each server-sent event, or the whole body as one. Raises HttpError.

    Closing the iterator early closes the connection, as a client that goes away does.
    """
    payload = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(host, port, limit=LIMIT)
    try:
        writer.write(head.encode() + payload)
        status, headers = await _read_head(reader)
        if status != 200:
            text = b"".join([part async for part in _body(reader, headers)]).decode(errors="replace")
            raise HttpError(f"{path} answered {status}: {text[:500]}")
        if headers.get("content-type", "").startswith("text/event-stream"):
            async for event in _events(_body(reader, headers)):
                yield event
        else:
            whole = b"".join([part async for part in _body(reader, headers)])
            yield Event(json.loads(whole), time.monotonic())
    finally:
        writer.close()


async def get(host: str, port: int, path: str) -> int:
    """GET, for the status code alone; 0 when nobody listens."""
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        return 0
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        status, _ = await _read_head(reader)
        return status
    except (HttpError, OSError):
        return 0
    finally:
        writer.close()


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        raise HttpError(f"the connection ended in the answer's head: {error.partial!r}") from error
    first, *lines = raw.decode("latin-1").rstrip().split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        raise HttpError(f"no HTTP status line: {first!r}")
    pairs = (line.partition(":") for line in lines)
    return int(words[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """The body as it arrives. Raises HttpError when it is cut short."""
    try:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await reader.readline()).split(b";")[0] or b"x", 16):
                part = await reader.readexactly(size + 2)
                yield part[:-2]
        elif "content-length" in headers:
            yield await reader.readexactly(int(headers["content-length"]))
        else:
            while part := await reader.read(65536):
                yield part
    except (asyncio.IncompleteReadError, ValueError) as error:
        raise HttpError(f"the connection ended in the answer's body: {error!r}") from error


async def _events(parts: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    """Server-sent events: an empty line ends each. Comments and llama-server's closing [DONE] are passed over."""
    pending = b""
    async for part in parts:
        at = time.monotonic()
        pending += part
        *complete, pending = pending.split(b"\n\n")
        for block in complete:
            data = b"".join(line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:"))
            if data and data != b"[DONE]":
                yield Event(json.loads(data), at)
