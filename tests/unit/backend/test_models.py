"""Both Triton models without Triton and llama.cpp: every request is answered once, by whichever way it came."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import triton_python_backend_utils as pb_utils
from llamacpp_backend import delivery, engine_model
from llamacpp_backend.answers import Outputs
from llamacpp_backend.chat import NoChatTemplate
from llamacpp_backend.engine.job import Job, Summary, Timings
from llamacpp_backend.engine_model import EngineModel
from llamacpp_backend.errors import BadRequest, Cancelled, Unavailable
from llamacpp_backend.front_model import FrontModel
from llamacpp_backend.link import EngineClient
from llamacpp_backend.opening import Opened
from llamacpp_backend.parameters import fit_to_model
from llamacpp_backend.prompts import PromptEncoder
from llamacpp_backend.requests import RawRequest
from llamacpp_backend.settings import Place
from llamacpp_backend.triton_adapter import read_request

SUMMARY = Summary("stop", 1, 0, 1, None, Timings(0.5, 1.0, 2.0, 1.5))
Wait = Callable[[Callable[[], bool]], None]


class Tokenizer:
    """A token for each character."""

    bos_text = ""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return [ord(character) for character in text]


class Speaker:
    """An engine that says a prompt again, on a thread of its own, once `gate` is open; two jobs may wait."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.jobs: list[Job] = []
        self.threads: list[threading.Thread] = []
        self.waiting = 0

    def submit(self, job: Job) -> None:
        if self.waiting == 2:
            raise Unavailable("2 requests are waiting")
        self.waiting += 1
        self.jobs.append(job)
        self.threads.append(threading.Thread(target=self._say, args=(job,)))
        self.threads[-1].start()

    def _say(self, job: Job) -> None:
        while not self.gate.wait(0.001):
            if job.reply.client_gone():
                job.reply.fail(Cancelled("cancelled at a step"))
                return
        for token in job.prompt:
            job.reply.piece(0, chr(token), ())
        job.reply.finish([SUMMARY])
        self.waiting -= 1

    def close(self) -> None:
        for thread in self.threads:
            thread.join()


class Engine:
    """An engine's model."""

    def __init__(self) -> None:
        self.speaker = Speaker()
        self.gate = self.speaker.gate
        self.closed = 0
        opened = Opened(
            engine=self.speaker,
            prompts=PromptEncoder(Tokenizer(), NoChatTemplate("none"), 64),
            fit=lambda sampling: fit_to_model(sampling, n_vocab=2**20, n_parallel=4, timeout_ms=5000),
            defaults={},
            n_ctx=64,
            close=self._close,
        )
        self.model = EngineModel(opened, Place("engine", "demo_stream", Path("/models/demo_stream/1")))

    def _close(self) -> None:
        self.closed += 1


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(delivery, "POLL_SECONDS", 0.002)
    engine = Engine()
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
        pb_utils.Request({"prompt": [b"x"]}, {"n": 5}),
        pb_utils.Request({}, "{"),
    ]
    engine.model.execute(requests)
    wait_until(lambda: all(request.sender.finals == 1 for request in requests))
    assert [outcome(request) for request in requests] == [["a", "b", ""], *[["INVALID_ARG"]] * 3]


def test_engine_answers_once_where_no_stream_is_wanted(engine: Engine, wait_until: Wait) -> None:
    request = pb_utils.Request({"prompt": [b"cd"]}, {"stream": False})
    engine.model.execute([request])
    wait_until(lambda: request.sender.finals == 1)
    assert outcome(request) == ["cd"]


def test_engine_answers_a_front(engine: Engine) -> None:
    raw = RawRequest({"prompt": "ab"}, {"max_tokens": 3})
    assert EngineClient("demo_stream", 1).ask(raw, lambda: False)["text_output"] == ["ab"]
    with pytest.raises(BadRequest, match="best_of"):
        EngineClient("demo_stream", 1).ask(RawRequest({"prompt": "ab"}, {"best_of": 1}), lambda: False)


def test_engine_gives_each_job_its_deadline(engine: Engine, wait_until: Wait) -> None:
    began = time.monotonic()
    requests = [pb_utils.Request({"prompt": [b"x"]}, {"timeout_ms": ms}) for ms in (100, 0)]
    for request in requests:
        engine.model.execute([request])
        wait_until(lambda request=request: request.sender.finals == 1)  # type: ignore[misc]
    deadlines = [(job.deadline or 0) - began for job in engine.speaker.jobs]
    assert 0.1 <= deadlines[0] < 0.6, "its own"
    assert 5.0 <= deadlines[1] < 5.6, "the engine's ceiling"


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
    wait_until(lambda: sum(request.sender.finals for request in requests) == 7)
    refused = [request for request in requests if request.sender.finals]
    assert all(outcome(request) == ["UNAVAILABLE"] for request in refused)
    engine.gate.set()
    wait_until(lambda: all(request.sender.finals == 1 for request in requests))


def test_engine_that_is_unloaded_while_a_front_is_being_read(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model must not be freed before the last request has left the intake."""
    reading, gate = threading.Event(), threading.Event()
    encode = engine.model._opened.prompts.encode
    freed_early: list[int] = []

    def slow(wanted: Any) -> list[int]:
        reading.set()
        assert gate.wait(5)
        freed_early.append(engine.closed)
        return encode(wanted)

    monkeypatch.setattr(engine.model._opened.prompts, "encode", slow)
    outcomes: list[Any] = []

    def ask() -> None:
        try:
            outcomes.append(EngineClient("demo_stream", 1).ask(RawRequest({"prompt": "ab"}, {}), lambda: False))
        except Unavailable as error:
            outcomes.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    assert reading.wait(5)
    closing = threading.Thread(target=engine.model.finalize)
    closing.start()
    time.sleep(0.1)
    gate.set()
    closing.join(5)
    asking.join(5)
    assert (freed_early, engine.closed, len(outcomes)) == ([0], 1, 1)


def test_constraint_that_takes_long_holds_up_no_other_request(engine: Engine, wait_until: Wait) -> None:
    gate = threading.Event()
    fit = engine.model._opened.fit

    def slow(sampling: Any) -> Any:
        assert sampling.json_schema is None or gate.wait(5)
        return fit(sampling)

    object.__setattr__(engine.model._opened, "fit", slow)
    constrained = [pb_utils.Request({"prompt": [b"x"]}, {"json_schema": "{}"}) for _ in range(8)]
    plain = pb_utils.Request({"prompt": [b"y"]})
    engine.model.execute([*constrained, plain])
    wait_until(lambda: plain.sender.finals == 1)
    assert [request.sender.finals for request in constrained] == [0] * 8
    gate.set()
    wait_until(lambda: all(request.sender.finals == 1 for request in constrained))


def test_engine_whose_link_cannot_be_made_leaves_no_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engines").write_text("")
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    before = set(threading.enumerate())
    with pytest.raises(FileExistsError):
        Engine()
    assert set(threading.enumerate()) <= before


def test_engine_refuses_more_than_it_can_read(
    engine: Engine, wait_until: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.model, "_room", threading.BoundedSemaphore(1))
    gate = threading.Event()
    monkeypatch.setattr(engine_model, "read_request", lambda request: gate.wait(5) and read_request(request))
    requests = [pb_utils.Request({"prompt": [b"x"]}) for _ in range(3)]
    engine.model.execute(requests)
    wait_until(lambda: [outcome(request) for request in requests[1:]] == [["UNAVAILABLE"]] * 2)
    gate.set()
    wait_until(lambda: requests[0].sender.finals == 1)
    last = pb_utils.Request({"prompt": [b"y"]})
    wait_until(lambda: engine.model._room.acquire(blocking=False))
    engine.model._room.release()
    engine.model.execute([last])
    wait_until(lambda: outcome(last) == ["y", ""])


def test_engine_ends_a_job_whose_client_has_cancelled(engine: Engine, wait_until: Wait) -> None:
    engine.gate.clear()
    request = pb_utils.Request({"prompt": [b"x"]})
    engine.model.execute([request])
    wait_until(lambda: len(engine.speaker.jobs) == 1)
    request.sender.cancelled = True
    wait_until(lambda: request.sender.finals == 1)
    assert outcome(request) == ["CANCELLED"]


def test_engine_finalize_lets_requests_end_then_frees(engine: Engine, wait_until: Wait) -> None:
    engine.gate.clear()
    request = pb_utils.Request({"prompt": [b"x"]}, {"stream": False})
    engine.model.execute([request])
    wait_until(lambda: len(engine.speaker.jobs) == 1)
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

    def ask(self, raw: RawRequest, client_gone: Callable[[], bool]) -> Outputs:
        self.asked.append(raw)
        while not self.gate.wait(0.001):
            if client_gone():
                raise Cancelled("cancelled")
        if self.error:
            raise self.error
        return {"text_output": [raw.inputs.get("prompt", "")]}


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
    pb_utils.Logger.lines.clear()
    refused, accepted = pb_utils.Request({}, {"stream": True}), pb_utils.Request()
    refused.sender.broken = accepted.sender.broken = True
    good = pb_utils.Request({"prompt": [b"x"]})
    front.model.execute([refused, accepted, good])
    wait_until(lambda: good.sender.finals == 1 and len(pb_utils.Logger.lines) == 2)
    assert all("the client's connection broke" in line for _, line in pb_utils.Logger.lines)


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
