"""The private link between front and engine: whole requests and answers, cancelling, and an end that dies."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from llamacpp_backend import link
from llamacpp_backend.answers import Collector, Outputs
from llamacpp_backend.engine.job import Summary, Timings
from llamacpp_backend.errors import BackendError, BadRequest, Cancelled, EngineFailure, Unavailable
from llamacpp_backend.link import EngineClient, EngineLink, LinkReply, link_path
from llamacpp_backend.requests import RawRequest

Wait = Callable[[Callable[[], bool]], None]
RAW = RawRequest(
    {"prompt": "人工 \n智能 \x00", "stop": ["a", "b"]}, {"temperature": 0.7, "seed": 2**32 - 2, "top_k": -1}
)
SUMMARY = Summary("length", 3, 0, 2, 7, Timings(0.5, 1.0, 2.0, 1.5))


class Engine:
    """An engine that does with each request what `act` says."""

    def __init__(self) -> None:
        self.asked: list[RawRequest] = []
        self.replies: list[LinkReply] = []
        self.act: Callable[[RawRequest, LinkReply], None] = self.echo
        self.errors: list[str] = []
        self.link = EngineLink(link_path("demo_stream", 1), self.take, self.errors.append)

    def take(self, read: Callable[[], RawRequest], reply: LinkReply) -> None:
        raw = read()
        self.asked.append(raw)
        self.replies.append(reply)
        self.act(raw, reply)

    @staticmethod
    def echo(raw: RawRequest, reply: LinkReply) -> None:
        for character in raw.inputs["prompt"]:
            reply.piece(0, character, ())
        reply.finish([SUMMARY])


@pytest.fixture(autouse=True)
def run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(link, "POLL_SECONDS", 0.005)


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine()
    yield engine
    engine.link.close()
    engine.link.join()


def ask(raw: RawRequest = RAW, gone: Callable[[], bool] = lambda: False) -> Outputs:
    return EngineClient("demo_stream", 1).ask(raw, gone)


def answer(text: str) -> Outputs:
    """The outputs of one answer with this text."""
    collector = Collector()
    collector.piece(0, text, ())
    return collector.outputs([SUMMARY])


def test_request_and_answer_cross_as_they_are(engine: Engine) -> None:
    assert ask() == answer(RAW.inputs["prompt"])
    assert engine.asked == [RAW]


def test_large_requests_and_answers(engine: Engine) -> None:
    raw = RawRequest({"prompt": "é" * 1_000_000}, {})
    assert ask(raw) == answer(raw.inputs["prompt"])


@pytest.mark.parametrize(
    "error", [BadRequest("wrong: é"), Unavailable("full"), Cancelled("gone"), EngineFailure("broke")]
)
def test_error_crosses_as_what_it_was(engine: Engine, error: BackendError) -> None:
    engine.act = lambda _raw, reply: reply.fail(error)
    with pytest.raises(type(error)) as caught:
        ask()
    assert type(caught.value) is type(error)
    assert str(caught.value) == str(error)


def test_many_at_once_get_each_its_own(engine: Engine) -> None:
    raws = [RawRequest({"prompt": f"request {number}"}, {}) for number in range(200)]
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(ask, raws))
    assert answers == [answer(raw.inputs["prompt"]) for raw in raws]


def test_client_that_goes_cancels(engine: Engine, wait_until: Wait) -> None:
    engine.act = lambda _raw, _reply: None
    gone = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask, RAW, gone.is_set)
        wait_until(lambda: len(engine.replies) == 1)
        assert not engine.replies[0].client_gone()
        gone.set()
        with pytest.raises(Cancelled):
            asking.result(5)
    wait_until(engine.replies[0].client_gone)
    engine.replies[0].piece(0, "late", ())
    engine.replies[0].finish([SUMMARY])  # nobody reads it, and nothing happens


def test_engine_that_is_not_there() -> None:
    with pytest.raises(Unavailable, match=r"model 'demo_stream' is not loaded \(No such file or directory\)"):
        ask()


def test_engine_that_was_killed_before_and_during_a_request(tmp_path: Path) -> None:
    path = link_path("demo_stream", 1)
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def die() -> None:
            connection, _ = listener.accept()
            connection.recv(100)
            connection.close()  # as the kernel does for a process that is gone

        threading.Thread(target=die).start()
        with pytest.raises(EngineFailure, match="the process of model 'demo_stream' ended before it had answered"):
            ask()
    with pytest.raises(Unavailable, match=r"is not loaded \(Connection refused\)"):
        ask()


def test_connections_that_can_not_be_accepted_are_accepted_later(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener, failures = engine.link._listener, [OSError(24, "Too many open files")] * 3

    class Exhausted:
        """A listener for which there are no files at first."""

        def accept(self) -> tuple[socket.socket, str]:
            if failures:
                raise failures.pop()
            return listener.accept()

        def __getattr__(self, name: str) -> object:
            return getattr(listener, name)

    monkeypatch.setattr(engine.link, "_listener", Exhausted())
    assert ask() == answer(RAW.inputs["prompt"])
    assert len(engine.errors) == 3


def test_connections_without_a_thread_are_closed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def fail(_thread: threading.Thread) -> None:
        monkeypatch.setattr(threading.Thread, "start", start)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(EngineFailure, match="ended before it had answered"):
        ask()
    assert ask() == answer(RAW.inputs["prompt"])


def test_left_over_socket_of_a_killed_engine_does_not_matter() -> None:
    path = link_path("demo_stream", 1)
    path.parent.mkdir()
    for left_over in (path, path.with_suffix(f".{os.getpid()}")):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(left_over))
    engine = Engine()
    assert ask() == answer(RAW.inputs["prompt"])
    engine.link.close()
    engine.link.join()
    assert list(path.parent.iterdir()) == []


def test_new_engine_takes_over_from_its_old_self(engine: Engine) -> None:
    new = Engine()
    assert ask() == answer(RAW.inputs["prompt"])
    engine.link.close()
    assert ask() == answer(RAW.inputs["prompt"])
    assert (len(engine.asked), len(new.asked)) == (0, 2)
    new.link.close()
    new.link.join()


def test_close_lets_running_requests_end(engine: Engine, wait_until: Wait) -> None:
    gate = threading.Event()

    def answer_later(_raw: RawRequest, reply: LinkReply) -> None:
        def finish() -> None:
            gate.wait(5)
            reply.finish([SUMMARY])

        threading.Thread(target=finish).start()

    engine.act = answer_later
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        wait_until(lambda: len(engine.replies) == 1)
        engine.link.close()
        with pytest.raises(Unavailable):
            ask()
        gate.set()
        assert asking.result(5) == answer("")
    engine.link.join()
    assert engine.link._threads == set()


def test_front_that_reads_nothing_holds_nobody_up(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, wait_until: Wait
) -> None:
    monkeypatch.setattr(link, "SEND_SECONDS", 1)

    def say_much(_raw: RawRequest, reply: LinkReply) -> None:
        reply.piece(0, "x" * 4_000_000, ())
        began = time.monotonic()
        reply.finish([SUMMARY])
        assert time.monotonic() - began < 0.1

    engine.act = say_much
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(link_path("demo_stream", 1)))
        connection.sendall(b'{"inputs": {}, "parameters": {}}\n')
        wait_until(lambda: len(engine.errors) == 1)
        assert "could not be delivered to a front" in engine.errors[0]
        connection.settimeout(5)
        while connection.recv(65536):  # what was sent, and then the end: the front must not wait for the rest
            pass


def test_front_that_is_stopped_while_it_asks_does_not_hold_up_an_unload(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, wait_until: Wait
) -> None:
    monkeypatch.setattr(link, "SEND_SECONDS", 1)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(link_path("demo_stream", 1)))
        connection.sendall(b'{"inputs"')
        wait_until(lambda: len(engine.link._threads) == 1)
        engine.link.close()
        engine.link.join()
    assert engine.asked == []


def test_front_that_goes_before_it_asks(engine: Engine, wait_until: Wait) -> None:
    socket_path = str(link_path("demo_stream", 1))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(socket_path)
    wait_until(lambda: not engine.link._threads)
    assert engine.asked == []


def test_versions_and_names_have_their_own_link_of_bounded_length() -> None:
    paths = {link_path(name, version) for name in ("demo_stream", "x" * 71) for version in (1, 10**18)}
    assert len(paths) == 4
    assert all(len(f"/run/triton/engines/{path.name}") < 100 for path in paths)
