"""Both Triton models without Triton and llama.cpp: every request is answered once, the watcher finds gone clients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import triton_python_backend_utils as pb_utils
from llamacpp_backend import contract, front_model
from llamacpp_backend.chat import NoChatTemplate
from llamacpp_backend.engine_model import EngineModel
from llamacpp_backend.errors import Cancelled, Unavailable
from llamacpp_backend.front_model import FrontModel, Watcher
from llamacpp_backend.generator import Summary
from llamacpp_backend.prompts import PromptEncoder
from llamacpp_backend.worker import Job, Worker

Wait = Callable[[Callable[[], bool]], None]


class Tokenizer:
    """A token for each character."""

    bos_text = ""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return [ord(character) for character in text]


class Engine:
    """An engine's model that says its prompt again, once `gate` is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.closed = 0
        self.errors: list[str] = []
        self.worker = Worker(self._run, 2, self.errors.append)
        self.model = EngineModel(
            PromptEncoder(Tokenizer(), NoChatTemplate("none"), 64), self.worker, {}, 64, self._close
        )

    def _run(self, job: Job) -> Summary:
        while not self.gate.wait(0.001):
            if job.is_cancelled():
                raise Cancelled("cancelled at a step")
        for token in job.prompt:
            job.reply.piece(chr(token))
        return Summary("stop", len(job.prompt), len(job.prompt))

    def _close(self) -> None:
        self.closed += 1


@pytest.fixture
def engine() -> Iterator[Engine]:
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


def test_engine_cancels_by_key(engine: Engine, wait_until: Wait) -> None:
    engine.gate.clear()
    request = pb_utils.Request({"prompt": [b"x"]}, {contract.PRIVATE_KEY: "k"})
    cancel = pb_utils.Request({}, {contract.PRIVATE_CANCEL: "k"})
    engine.model.execute([request])
    engine.model.execute([cancel])
    assert (cancel.sender.finals, cancel.sender.responses) == (1, [])
    wait_until(lambda: request.sender.finals == 1)
    (tensor,) = request.sender.responses[0].output_tensors()
    assert tensor.name() == contract.PRIVATE_STATUS
    assert b"CANCELLED" in tensor.as_numpy()[0]


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


class FakeCall:
    """The engine as a front sees it. Waits for `gate` or for its key's cancellation."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.asked: list[tuple[Mapping[str, Any], str]] = []
        self.cancelled: list[str] = []

    def ask(self, inputs: Sequence[Any], parameters: Mapping[str, Any], key: str) -> list[Any]:
        self.asked.append((parameters, key))
        while not self.gate.wait(0.001):
            if key in self.cancelled:
                raise Cancelled("cancelled")
        if self.error:
            raise self.error
        return list(inputs)

    def cancel(self, key: str) -> None:
        self.cancelled.append(key)


class Front:
    """A front with its engine."""

    def __init__(self) -> None:
        self.call = FakeCall()
        self.errors: list[str] = []
        self.model = FrontModel(self.call, self.errors.append)


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    monkeypatch.setattr(front_model, "POLL_SECONDS", 0.002)
    front = Front()
    yield front
    front.call.gate.set()
    front.model.finalize()


def test_front_relays(front: Front, wait_until: Wait) -> None:
    request = pb_utils.Request({"text_output": [b"x"]}, {"temperature": 0.5, "stream": False})
    front.model.execute([request])
    wait_until(lambda: request.sender.finals == 1)
    assert outcome(request) == ["x"]
    ((parameters, key),) = front.call.asked
    assert parameters == {"temperature": 0.5}
    assert len(key) == 32


@pytest.mark.parametrize("error", [None, Unavailable("full"), KeyError("bug")])
def test_front_watches_no_ended_request(front: Front, error: Exception | None) -> None:
    front.call.error = error
    front.model.execute([pb_utils.Request(), pb_utils.Request({}, {"stream": True})])
    front.model._pool.shutdown(wait=True)
    assert front.model._watcher._running == {}


def test_front_keys_differ(front: Front, wait_until: Wait) -> None:
    requests = [pb_utils.Request({"text_output": [b"x"]}) for _ in range(20)]
    front.model.execute(requests)
    wait_until(lambda: all(request.sender.finals == 1 for request in requests))
    assert len({key for _, key in front.call.asked}) == 20


def test_front_answers_many_at_once(front: Front, wait_until: Wait) -> None:
    front.call.gate.clear()
    requests = [pb_utils.Request({"text_output": [b"x"]}) for _ in range(50)]
    front.model.execute(requests)
    wait_until(lambda: len(front.call.asked) == 50)
    front.call.gate.set()
    wait_until(lambda: all(request.sender.finals == 1 for request in requests))


@pytest.mark.parametrize(
    ("error", "code", "logged"), [(Unavailable("full"), "UNAVAILABLE", 0), (KeyError("bug"), "INTERNAL", 1)]
)
def test_front_answers_failures(front: Front, wait_until: Wait, error: Exception, code: str, logged: int) -> None:
    front.call.error = error
    request = pb_utils.Request()
    front.model.execute([request])
    wait_until(lambda: request.sender.finals == 1)
    assert outcome(request) == [code]
    assert len(front.errors) == logged


def test_front_answers_bad_requests_of_a_call_and_the_good_ones(front: Front, wait_until: Wait) -> None:
    requests = [
        pb_utils.Request({}, {"stream": True}),
        pb_utils.Request({}, {contract.PRIVATE_KEY: "x"}),
        Unreadable(),
        pb_utils.Request({"text_output": [b"x"]}),
    ]
    front.model.execute(requests)
    wait_until(lambda: all(request.sender.finals == 1 for request in requests))
    assert [outcome(request) for request in requests] == [["INVALID_ARG"], ["INVALID_ARG"], ["INTERNAL"], ["x"]]
    assert len(front.call.asked) == 1


def test_front_outlives_a_client_that_cannot_be_told(front: Front, wait_until: Wait) -> None:
    refused, accepted = pb_utils.Request({}, {"stream": True}), pb_utils.Request()
    refused.sender.broken = accepted.sender.broken = True
    good = pb_utils.Request({"text_output": [b"x"]})
    front.model.execute([refused, accepted, good])
    wait_until(lambda: good.sender.finals == 1 and len(front.errors) == 2)
    assert all("the client's connection broke" in line for line in front.errors)


def test_front_cancels_for_clients_that_have_gone(front: Front, wait_until: Wait) -> None:
    front.call.gate.clear()
    gone, staying = pb_utils.Request(), pb_utils.Request()
    front.model.execute([gone, staying])
    wait_until(lambda: len(front.call.asked) == 2)
    gone.sender.cancelled = True
    wait_until(lambda: gone.sender.finals == 1)
    assert outcome(gone) == ["CANCELLED"]
    assert staying.sender.finals == 0
    assert len(set(front.call.cancelled)) == 1


def test_front_finalize_waits_for_running_requests(front: Front, wait_until: Wait) -> None:
    front.call.gate.clear()
    request = pb_utils.Request({"text_output": [b"x"]})
    front.model.execute([request])
    wait_until(lambda: len(front.call.asked) == 1)
    closing = threading.Thread(target=front.model.finalize)
    closing.start()
    front.call.gate.set()
    closing.join(5)
    assert not closing.is_alive()
    assert outcome(request) == ["x"]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Watcher, list[str], list[str]]]:
    """A fast watcher, the keys it has cancelled, and the lines it has logged."""
    monkeypatch.setattr(front_model, "POLL_SECONDS", 0.002)
    cancelled: list[str] = []
    errors: list[str] = []
    watcher = Watcher(cancelled.append, errors.append)
    yield watcher, cancelled, errors
    watcher.close()


def test_watcher_cancels_again_until_the_request_has_ended(
    watched: tuple[Watcher, list[str], list[str]], wait_until: Wait
) -> None:
    watcher, cancelled, _ = watched
    watcher.add("a", lambda: True)
    watcher.add("b", lambda: False)
    wait_until(lambda: len(cancelled) >= 3)
    watcher.remove("a")
    wait_until(lambda: watcher._running.keys() == {"b"})
    assert set(cancelled) == {"a"}


def test_watcher_sleeps_when_idle_and_wakes(watched: tuple[Watcher, list[str], list[str]], wait_until: Wait) -> None:
    watcher, _, _ = watched
    polls: list[int] = []

    def note() -> bool:
        polls.append(1)
        return False

    watcher.add("a", note)
    wait_until(lambda: len(polls) >= 2)
    watcher.remove("a")
    wait_until(lambda: not watcher._changed.is_set())  # it waits for the next request, without a time-out
    before = len(polls)
    watcher.add("b", note)
    wait_until(lambda: len(polls) > before)


def test_watcher_outlives_a_failing_poll(watched: tuple[Watcher, list[str], list[str]], wait_until: Wait) -> None:
    watcher, cancelled, errors = watched

    def broken() -> bool:
        raise RuntimeError("no such request")

    watcher.add("a", broken)
    watcher.add("b", lambda: True)
    wait_until(lambda: "b" in cancelled and len(errors) >= 2)
    assert errors[0] == "a request could not be cancelled: RuntimeError('no such request')"


@pytest.mark.parametrize("busy", [False, True])
def test_watcher_ends(busy: bool, wait_until: Wait) -> None:
    watcher = Watcher(lambda _key: None, lambda _line: None)
    if busy:
        watcher.add("a", lambda: False)
    else:
        wait_until(lambda: not watcher._changed.is_set())
    closing = threading.Thread(target=watcher.close)
    closing.start()
    closing.join(5)
    assert not closing.is_alive()
    assert not watcher._thread.is_alive()
