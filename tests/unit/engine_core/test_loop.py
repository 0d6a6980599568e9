"""The engine's thread and its door: refusals, clients that go, draining, sleeping."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from llamacpp_backend.engine.clients import LOOK_EVERY
from llamacpp_backend.engine.core import EngineLimits
from llamacpp_backend.engine.job import Job, Summary
from llamacpp_backend.engine.loop import Engine
from llamacpp_backend.engine.runner import Chunk
from llamacpp_backend.errors import BackendError, BadRequest, Cancelled, EngineFailure, Unavailable

from tests.unit.engine_core.bench import SMALL_CACHE, Reply, expected, sampling
from tests.unit.engine_core.fake_runner import FakeRunner

PROMPT = [7, 8, 9, 10]


class WaitingReply(Reply):
    """A reply that one can wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = threading.Event()

    def finish(self, answers: Sequence[Summary]) -> None:
        super().finish(answers)
        self.ended.set()

    def fail(self, error: BackendError) -> None:
        super().fail(error)
        self.ended.set()


class Rig:
    """An engine whose steps wait for `gate`."""

    def __init__(self, n_slots: int = 2, queue_size: int = 2) -> None:
        self.runner = FakeRunner(n_slots)
        self.gate = threading.Event()
        self.gate.set()
        self.in_step = threading.Event()
        self.errors: list[str] = []
        self.runner.on_decode = self._wait
        self.engine = Engine(self.runner, EngineLimits(queue_size, SMALL_CACHE), self.errors.append)

    def _wait(self, _chunks: Sequence[Chunk]) -> None:
        self.in_step.set()
        assert self.gate.wait(10)

    def submit(self, prompt: Sequence[int] = PROMPT, **given: Any) -> tuple[Job, WaitingReply]:
        reply = WaitingReply()
        job = Job(prompt, sampling(**given), reply)
        self.engine.submit(job)
        return job, reply


@pytest.fixture
def make_rig() -> Iterator[Callable[..., Rig]]:
    """Rigs that are closed at the end."""
    rigs: list[Rig] = []

    def make(**options: int) -> Rig:
        rigs.append(Rig(**options))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.gate.set()
        rig.engine.close()
        assert rig.runner.violations == []


def ended(reply: WaitingReply) -> WaitingReply:
    assert reply.ended.wait(10), "no final call within 10 s"
    return reply


def test_answers_come_from_a_thread_of_its_own(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    replies = [rig.submit([20 + number, *PROMPT])[1] for number in range(3)]
    for number, reply in enumerate(replies):
        wanted = expected([20 + number, *PROMPT], sampling(), 0, 64)
        assert (ended(reply).text(), reply.summaries[0].finish_reason) == wanted[:2]


def test_as_many_may_wait_as_slots_and_queue_hold_and_one_more_is_refused_at_once(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig(n_slots=2, queue_size=3)
    rig.gate.clear()
    first = rig.submit([20, *PROMPT])[1]
    assert rig.in_step.wait(10)
    others = [rig.submit([21 + number, *PROMPT])[1] for number in range(4)]
    with pytest.raises(Unavailable, match="4 requests are waiting, as many as queue_size allows"):
        rig.submit()
    assert rig.engine.metrics.rejections["queue_full"].value == 1
    rig.gate.set()
    for reply in (first, *others):
        assert ended(reply).summaries
    assert ended(rig.submit()[1]).summaries


def test_an_idle_engine_takes_as_many_at_once_as_it_has_slots_and_queue(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(n_slots=4, queue_size=1)
    replies = [rig.submit([20 + number, *PROMPT], max_tokens=40, ignore_eos=True)[1] for number in range(4)]
    for reply in replies:
        assert ended(reply).summaries


@pytest.mark.parametrize("length", [0, 64, 100])
def test_a_prompt_that_does_not_fit_is_refused(make_rig: Callable[..., Rig], length: int) -> None:
    with pytest.raises(BadRequest, match=f"the prompt has {length} tokens; allowed are 1 to 63"):
        make_rig().submit([7] * length)


def test_clients_of_a_running_and_of_a_waiting_job_go(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(n_slots=1)
    rig.gate.clear()
    first = rig.submit(max_tokens=50, ignore_eos=True)[1]
    assert rig.in_step.wait(10)
    second = rig.submit()[1]
    first.gone = second.gone = True
    time.sleep(LOOK_EVERY)
    rig.gate.set()
    assert isinstance(ended(first).error, Cancelled)
    assert isinstance(ended(second).error, Cancelled)
    assert rig.runner.calls["decode"] <= 2
    assert ended(rig.submit()[1]).summaries


def test_close_refuses_new_jobs_and_lets_the_accepted_ones_end(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(n_slots=1)
    rig.gate.clear()
    replies = [rig.submit([20 + number, *PROMPT])[1] for number in range(3)]
    closing = threading.Thread(target=rig.engine.close)
    closing.start()
    for _ in range(1000):
        try:
            rig.submit()
        except Unavailable as error:
            if "unloaded" in str(error):
                break
        time.sleep(0.005)
    else:
        pytest.fail("a closing engine went on taking jobs")
    rig.gate.set()
    closing.join(10)
    assert not closing.is_alive()
    assert all(reply.summaries for reply in replies)
    rig.engine.close()
    with pytest.raises(Unavailable, match="unloaded"):
        rig.submit()
    assert rig.engine.metrics.rejections["closing"].value >= 2


def test_an_idle_engine_sleeps(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    ended(rig.submit()[1])
    turns = 0
    core: Any = rig.engine._core
    turn = core.turn

    def count() -> None:
        nonlocal turns
        turns += 1
        turn()

    core.turn = count
    before = time.process_time()
    time.sleep(0.3)
    assert turns <= 1  # the one that may still have been under way
    assert time.process_time() - before < 0.1
    assert ended(rig.submit()[1]).summaries, "it woke up"


def test_the_snapshot_counts_answers_and_slots(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(n_slots=1)
    rig.gate.clear()
    first = rig.submit()[1]
    assert rig.in_step.wait(10)
    second = rig.submit([20, *PROMPT])[1]
    snapshot = rig.engine.snapshot()
    assert (snapshot.running, snapshot.waiting, snapshot.free_slots) == (1, 1, 0)
    assert rig.engine.metrics.running.value == 1
    rig.gate.set()
    ended(first)
    ended(second)


def test_an_error_that_nobody_foresaw_fails_the_jobs_and_the_next_one_is_served(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    core: Any = rig.engine._core
    turn = core.turn

    def break_once() -> None:
        core.turn = turn
        turn()
        raise RuntimeError("a bug")

    core.turn = break_once
    assert "a bug" in str(ended(rig.submit(max_tokens=50, ignore_eos=True)[1]).error)
    assert isinstance(ended(rig.submit(max_tokens=1)[1]).finals[0], (list, EngineFailure))
    assert ended(rig.submit()[1]).summaries
    assert any("a bug" in line for line in rig.errors)


def test_runner_is_warm_on_the_engines_own_thread_before_anything_else() -> None:
    runner = FakeRunner()
    threads: list[str] = []
    runner.warm_up = lambda: threads.append(threading.current_thread().name)  # type: ignore[method-assign]
    engine = Engine(runner, EngineLimits(4, SMALL_CACHE), lambda _line: None)
    assert threads == ["llamacpp-engine"]
    engine.close()


def test_failed_warm_up_is_raised_and_leaves_no_thread() -> None:
    runner = FakeRunner()

    def fail() -> None:
        raise EngineFailure("no warm-up")

    runner.warm_up = fail  # type: ignore[method-assign]
    with pytest.raises(EngineFailure, match="no warm-up"):
        Engine(runner, EngineLimits(4, SMALL_CACHE), lambda _line: None)
    assert not any(thread.name == "llamacpp-engine" for thread in threading.enumerate() if thread.is_alive())
