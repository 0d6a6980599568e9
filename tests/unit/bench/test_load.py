"""The load generator against servers that answer by script."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bench import http
from bench.dialects import LlamaServerDialect, TritonDialect, Wanted
from bench.load import Answer, ask, closed_loop, faults
from bench.measure import summary
from bench.servers import Running

Script = Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\n"
WANTED = Wanted("hello", 5, 2, stream=True)


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[int]:
    """A server on loopback that reads one request per connection and lets the script answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        await script(json.loads(await reader.readexactly(size)), writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def answered(script: Script, dialect: Any = None, wanted: Wanted = WANTED) -> Answer:
    """One request to such a server."""

    async def run() -> Answer:
        async with serving(script) as port:
            return await ask(Running("x", "127.0.0.1", port, dialect or TritonDialect("m"), None), wanted)

    return asyncio.run(run())


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(**data: Any) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


EVENT_STREAM = OK + b"Content-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


async def stream(_body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    """Two pieces, cut where no event ends, an empty one between them, then the counts."""
    first, second = event(text_output="He"), event(text_output="llo")
    writer.write(EVENT_STREAM + chunk(first[:9]))
    await writer.drain()
    await asyncio.sleep(0.02)
    writer.write(chunk(first[9:]) + chunk(event(text_output="")))
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.write(chunk(second + event(text_output="", prompt_tokens=5, completion_tokens=2, cached_tokens=3)))
    writer.write(chunk(b""))


def test_a_stream_is_timed_piece_by_piece() -> None:
    answer = answered(stream)
    assert (answer.text, answer.error) == ("Hello", "")
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (5, 2, 3)
    assert answer.ttft >= 0.02
    assert len(answer.gaps) == 1
    assert answer.gaps[0] >= 0.05
    assert answer.seconds >= answer.ttft + answer.gaps[0]
    assert faults([answer], [WANTED]) == []


def test_wrong_counts_are_faults() -> None:
    assert faults([answered(stream)], [Wanted("hello", 5, 3, stream=True)]) == [
        "answered (5, 2) tokens of prompt and completion, not (5, 3)"
    ]
    assert len(faults([answered(stream)], [Wanted("hello", 5, 1, stream=True)])) == 1
    assert faults([answered(stream)], [Wanted("hello", 5, 1, stream=True)], exact=False) == []


async def whole(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    assert body["stream"] is False
    data = json.dumps(
        {"content": "Hi", "stop": True, "tokens_evaluated": 5, "tokens_predicted": 2, "timings": {"cache_n": 4}}
    ).encode()
    writer.write(OK + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data)


def test_a_whole_answer_of_llama_server() -> None:
    answer = answered(whole, LlamaServerDialect(), Wanted("hello", 5, 2, stream=False))
    assert (answer.text, answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == ("Hi", 5, 2, 4)


async def refuse(_body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 9\r\n\r\nno, never")


async def cut(_body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    writer.write(EVENT_STREAM + chunk(event(text_output="He")))


async def fail_inside(_body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    writer.write(EVENT_STREAM + chunk(event(error="out of luck")) + chunk(b""))


async def hang_up(_body: dict[str, Any], _writer: asyncio.StreamWriter) -> None:
    pass


@pytest.mark.parametrize(
    ("script", "what"),
    [
        (refuse, "answered 400: no, never"),
        (cut, "ended in the answer's body"),
        (fail_inside, "out of luck"),
        (hang_up, "ended in the answer's head"),
    ],
)
def test_what_goes_wrong_is_a_fault(script: Script, what: str) -> None:
    answer = answered(script)
    assert what in answer.error
    assert len(faults([answer], [WANTED])) == 1


def test_nobody_listens() -> None:
    async def run() -> tuple[int, Answer]:
        async with serving(hang_up) as port:
            pass
        target = Running("x", "127.0.0.1", port, TritonDialect("m"), None)
        return await http.get("127.0.0.1", port, "/"), await ask(target, WANTED)

    status, answer = asyncio.run(run())
    assert status == 0
    assert answer.error


def test_a_closed_loop_keeps_so_many_requests_under_way() -> None:
    under_way, most = 0, 0

    async def slow(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        await stream(body, writer)

    async def run() -> list[Answer]:
        async with serving(slow) as port:
            return await closed_loop(Running("x", "127.0.0.1", port, TritonDialect("m"), None), [WANTED] * 7, 3)

    answers = asyncio.run(run())
    assert len(answers) == 7
    assert most == 3
    assert faults(answers, [WANTED] * 7) == []


def test_a_summary_counts_good_answers_only() -> None:
    began = time.monotonic()
    good = Answer(began, began + 2, [began + 0.5, began + 1.5], "ab", 5, 2, 1)
    bad = Answer(began, began + 9, error="no")
    figures = summary([good, bad], wall=4.0, cpu=1.0)
    assert figures["tokens_per_s"] == 0.5
    assert figures["requests_per_s"] == 0.25
    assert figures["cpu_ms_per_token"] == 500.0
    assert figures["ttft_ms"]["p50"] == 500.0
    assert figures["gap_ms"]["p95"] == 1000.0
    assert figures["latency_ms"]["count"] == 1


def test_infer_route_of_triton() -> None:
    dialect, wanted = TritonDialect("m", "infer"), Wanted("hello", 5, 2, stream=False)
    assert dialect.path(wanted) == "/v2/models/m/infer"
    assert dialect.body(wanted)["inputs"][0]["data"] == ["hello"]
    outputs = {"text_output": "ab", "prompt_tokens": 5, "completion_tokens": 2, "cached_tokens": 0}
    piece = dialect.read({"outputs": [{"name": name, "data": [value]} for name, value in outputs.items()]})
    assert (piece.text, piece.prompt_tokens, piece.completion_tokens) == ("ab", 5, 2)


def test_chat_of_llama_server() -> None:
    dialect, wanted = LlamaServerDialect(), Wanted("hello", 0, 2, stream=True, system="be brief")
    assert dialect.path(wanted) == "/v1/chat/completions"
    assert [message["role"] for message in dialect.body(wanted)["messages"]] == ["system", "user"]
    assert dialect.read({"choices": [{"delta": {"content": "ab"}}]}).text == "ab"
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    piece = dialect.read({"choices": [], "usage": usage})
    assert (piece.text, piece.prompt_tokens, piece.completion_tokens, piece.cached_tokens) == ("", 5, 2, 4)
