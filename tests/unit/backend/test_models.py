"""Both Triton models without Triton and llama.cpp: every request is answered once, by whichever way it came."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import triton_python_backend_utils as pb_utils
from llamacpp_backend.chat import NoChatTemplate
from llamacpp_backend.engine_model import EngineModel
from llamacpp_backend.errors import Cancelled, Unavailable
from llamacpp_backend.front_model import FrontModel
from llamacpp_backend.generator import Summary
from llamacpp_backend.prompts import PromptEncoder
from llamacpp_backend.requests import RawRequest
from llamacpp_backend.worker import Job, Worker

Wait = Callable[[Callable[[], bool]], None]


class Tokenizer:
    """A token for each character."""

    bos_text = ""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return [ord(character) for character in text]


class Engine:
    """An engine's model that says its prompt again, once `gate` is open."""

    def __init__(self, link: Path) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.closed = 0
        self.errors: list[str] = []
        self.worker = Worker(self._run, 2, self.errors.append)
        self.model = EngineModel(
            PromptEncoder(Tokenizer(), NoChatTemplate("none"), 64), self.worker, {}, 64, link, self._close
        )

    def _run(self, job: Job) -> Summary:
        while not self.gate.wait(0.001):
            if job.reply.client_gone():
                raise Cancelled("cancelled at a step")
        for token in job.prompt:
            job.reply.piece(chr(token))
        return Summary("stop", len(job.prompt), len(job.prompt))

    def _close(self) -> None:
        self.closed += 1


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path / "engines" / "demo.sock")
    yield engine
    engine.gate.set()
    engine.model.finalize()


def outcome(request: Any) -> list[str]:
    """The texts of a request's responses, or an error's code."""
    responses = request.sender.responses
    texts = []
    for response in responses:
        if response.has_error():
            texts.append(response.error().code())
        else:
            texts += [t.as_numpy()[0].decode() for t in response.output_tensors() if t.name() == "text_output"]
    return texts


def test_engine_answers_good_and_bad_requests_of_one_call(engine: Engine, wait_until: Wait) -> None:
    requests = [
        pb_utils.Request({"prompt": [b"ab"]}),
        pb_utils.Request({"prompt": [b"x"]}, {"best_of": 1}),
        pb_utils.Request({"prompt": [b"cd"]}, {"stream": False}),
        pb_utils.Request({}, "{"),
    ]
    engine.model.execute(requests)
    wait_until(lambda: all(request.sender.finals == 1 for request in requests))
    assert [outcome(request) for request in requests] == [["a", "b", ""], ["INVALID_ARG"], ["cd"], ["INVALID_ARG"]]


class Unreadable(pb_utils.Request):  # type: ignore[misc]
    """A request that Triton itself can't read any more."""

    def parameters(self) -> str:
        raise RuntimeError("shared memory is gone")


def test_engine_answers_what_it_cannot_read(engine: Engine, wait_until: Wait) -> None:
    requests = [Unreadable({"prompt": [b"x"]}), pb_utils.Request({"prompt": [b"y"]})]
    engine.model.execute(requests)
    wait_until(lambda: all(request.sender.finals == 1 for request in requests))
    assert [outcome(request) for request in requests] == [["INTERNAL"], ["y", ""]]


def test_engine_outlives_a_client_that_cannot_be_told(engine: Engine, wait_until: Wait) -> None:
    refused = pb_utils.Request({}, {"best_of": 1})
    refused.sender.broken = True
    good = pb_utils.Request({"prompt": [b"y"]})
    engine.model.execute([refused, good])
    wait_until(lambda: good.sender.finals == 1)
    assert outcome(good) == ["y", ""]


def test_engine_full_queue(engine: Engine, wait_until: Wait) -> None:
    engine.gate.clear()
    requests = [pb_utils.Request({"prompt": [b"x"]}) for _ in range(9)]
    engine.model.execute(requests)
    refused = [request for request in requests if request.sender.finals]
    assert len(refused) >= 6
    assert all(outcome(request) == ["UNAVAILABLE"] for request in refused)
    engine.gate.set()
    wait_until(lambda: all(request.sender.finals == 1 for request in requests))


def test_engine_finalize_lets_requests_end_then_frees(engine: Engine) -> None:
    engine.gate.clear()
    request = pb_utils.Request({"prompt": [b"x"]}, {"stream": False})
    engine.model.execute([request])
    closing = threading.Thread(target=engine.model.finalize)
    closing.start()
    assert engine.closed == 0
    engine.gate.set()
    closing.join(5)
    assert (outcome(request), engine.closed) == (["x"], 1)


class FakeEngine:
    """The engine as a front sees it. Waits for `gate`, or for a client that has gone."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.asked: list[RawRequest] = []

    def ask(self, raw: RawRequest, client_gone: Callable[[], bool]) -> tuple[str, Summary]:
        self.asked.append(raw)
        while not self.gate.wait(0.001):
            if client_gone():
                raise Cancelled("cancelled")
        if self.error:
            raise self.error
        return raw.inputs.get("prompt", ""), Summary("stop", 1, 1)


class Front:
    """A front with its engine."""

    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.errors: list[str] = []
        self.model = FrontModel(self.engine, self.errors.append)


@pytest.fixture
def front() -> Iterator[Front]:
    front = Front()
    yield front
    front.engine.gate.set()
    front.model.finalize()


def test_front_relays(front: Front, wait_until: Wait) -> None:
    request = pb_utils.Request({"prompt": ["é".encode()]}, {"temperature": 0.5, "stream": False})
    front.model.execute([request])
    wait_until(lambda: request.sender.finals == 1)
    assert outcome(request) == ["é"]
    assert front.engine.asked == [RawRequest({"prompt": "é"}, {"temperature": 0.5})]


def test_front_answers_many_at_once(front: Front, wait_until: Wait) -> None:
    front.engine.gate.clear()
    requests = [pb_utils.Request({"prompt": [b"x"]}) for _ in range(50)]
    front.model.execute(requests)
    wait_until(lambda: len(front.engine.asked) == 50)
    front.engine.gate.set()
    wait_until(lambda: all(request.sender.finals == 1 for request in requests))


@pytest.mark.parametrize(
    ("error", "code", "logged"), [(Unavailable("full"), "UNAVAILABLE", 0), (KeyError("bug"), "INTERNAL", 1)]
)
def test_front_answers_failures(front: Front, wait_until: Wait, error: Exception, code: str, logged: int) -> None:
    front.engine.error = error
    request = pb_utils.Request()
    front.model.execute([request])
    wait_until(lambda: request.sender.finals == 1)
    assert outcome(request) == [code]
    assert len(front.errors) == logged


def test_front_answers_bad_requests_of_a_call_and_the_good_ones(front: Front, wait_until: Wait) -> None:
    requests = [
        pb_utils.Request({}, {"stream": True}),
        pb_utils.Request({"prompt": [b"\xff"]}),
        Unreadable(),
        pb_utils.Request({"prompt": [b"x"]}),
    ]
    front.model.execute(requests)
    wait_until(lambda: all(request.sender.finals == 1 for request in requests))
    assert [outcome(request) for request in requests] == [["INVALID_ARG"], ["INVALID_ARG"], ["INTERNAL"], ["x"]]
    assert len(front.engine.asked) == 1


def test_front_outlives_a_client_that_cannot_be_told(front: Front, wait_until: Wait) -> None:
    refused, accepted = pb_utils.Request({}, {"stream": True}), pb_utils.Request()
    refused.sender.broken = accepted.sender.broken = True
    good = pb_utils.Request({"prompt": [b"x"]})
    front.model.execute([refused, accepted, good])
    wait_until(lambda: good.sender.finals == 1 and len(front.errors) == 2)
    assert all("the client's connection broke" in line for line in front.errors)


def test_front_cancels_for_clients_that_have_gone(front: Front, wait_until: Wait) -> None:
    front.engine.gate.clear()
    gone, staying = pb_utils.Request(), pb_utils.Request()
    front.model.execute([gone, staying])
    wait_until(lambda: len(front.engine.asked) == 2)
    gone.sender.cancelled = True
    wait_until(lambda: gone.sender.finals == 1)
    assert outcome(gone) == ["CANCELLED"]
    assert staying.sender.finals == 0


def test_front_finalize_waits_for_running_requests(front: Front, wait_until: Wait) -> None:
    front.engine.gate.clear()
    request = pb_utils.Request({"prompt": [b"x"]})
    front.model.execute([request])
    wait_until(lambda: len(front.engine.asked) == 1)
    closing = threading.Thread(target=front.model.finalize)
    closing.start()
    front.engine.gate.set()
    closing.join(5)
    assert not closing.is_alive()
    assert outcome(request) == ["x"]
