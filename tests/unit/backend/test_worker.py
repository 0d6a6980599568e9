"""The worker: order, a bounded queue, cancelling, and exactly one final answer whatever fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from llamacpp_backend.errors import BackendError, BadRequest, Cancelled, EngineFailure, Unavailable
from llamacpp_backend.generator import Summary
from llamacpp_backend.parameters import parse_sampling
from llamacpp_backend.worker import Job, Worker

Wait = Callable[[Callable[[], bool]], None]
SUMMARY = Summary("stop", 1, 1)
SAMPLING = parse_sampling({}, {}, 100)


class FakeReply:
    """Remembers its final answers; can be a client that has gone, or one whose connection breaks."""

    def __init__(self) -> None:
        self.finals: list[Summary | BackendError] = []
        self.gone = False
        self.broken = False
        self.ended = threading.Event()

    def client_gone(self) -> bool:
        return self.gone

    def piece(self, text: str) -> None:
        raise AssertionError("no job here sends pieces")

    def finish(self, summary: Summary) -> None:
        self._end(summary)

    def fail(self, error: BackendError) -> None:
        self._end(error)

    def _end(self, final: Summary | BackendError) -> None:
        self.finals.append(final)
        self.ended.set()
        if self.broken:
            raise ConnectionError("broken pipe")


class Bench:
    """A worker whose jobs wait for `gate`; what they do then is `act`."""

    def __init__(self, queue_size: int = 3) -> None:
        self.gate = threading.Event()
        self.started: list[int] = []
        self.errors: list[str] = []
        self.act: Callable[[Job], Summary] = lambda _job: SUMMARY
        self.worker = Worker(self._run, queue_size, self.errors.append)

    def _run(self, job: Job) -> Summary:
        self.started.append(job.prompt[0])
        while not self.gate.wait(0.001):
            if job.reply.client_gone():
                raise Cancelled("cancelled at a step")
        return self.act(job)

    def submit(self, number: int, reply: FakeReply | None = None) -> FakeReply:
        reply = reply or FakeReply()
        self.worker.submit(Job([number], SAMPLING, reply))
        return reply


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.gate.set()
    bench.worker.close()


def kinds(*replies: FakeReply) -> list[list[type]]:
    return [[type(final) for final in reply.finals] for reply in replies]


def test_first_come_first_served(bench: Bench) -> None:
    bench.gate.set()
    replies = []
    for number in range(20):
        replies.append(bench.submit(number))
        replies[-1].ended.wait(5)
    bench.worker.close()
    assert bench.started == list(range(20))
    assert all(reply.finals == [SUMMARY] for reply in replies)


def test_waiting_ones_keep_their_order(bench: Bench, wait_until: Wait) -> None:
    bench.submit(0)
    wait_until(lambda: bench.started == [0])
    for number in (1, 2, 3):
        bench.submit(number)
    bench.gate.set()
    bench.worker.close()
    assert bench.started == [0, 1, 2, 3]


def test_full_queue_refuses_at_once_and_takes_again(bench: Bench, wait_until: Wait) -> None:
    first = bench.submit(0)
    wait_until(lambda: bench.started == [0])
    waiting = [bench.submit(number) for number in (1, 2, 3)]
    with pytest.raises(Unavailable, match="3 requests are waiting, as many as queue_size allows"):
        bench.submit(4)
    bench.gate.set()
    assert all(reply.ended.wait(5) for reply in (first, *waiting))
    again = bench.submit(5)
    assert again.ended.wait(5)
    assert 4 not in bench.started


def test_client_that_goes_while_its_job_runs(bench: Bench, wait_until: Wait) -> None:
    running = bench.submit(0)
    wait_until(lambda: bench.started == [0])
    running.gone = True
    assert running.ended.wait(5)
    assert kinds(running) == [[Cancelled]]
    assert bench.errors == [], "a cancelled request is no failure"


def test_client_that_has_gone_while_waiting_is_not_run(bench: Bench, wait_until: Wait) -> None:
    bench.submit(0)
    wait_until(lambda: bench.started == [0])
    waiting = bench.submit(1)
    waiting.gone = True
    bench.gate.set()
    bench.worker.close()
    assert kinds(waiting) == [[Cancelled]]
    assert bench.started == [0]


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (BadRequest("no"), BadRequest, "no"),
        (EngineFailure("decode"), EngineFailure, "decode"),
        (ValueError("bug"), EngineFailure, "internal error: ValueError('bug')"),
        (MemoryError(), EngineFailure, "internal error: MemoryError()"),
    ],
)
def test_failure_is_answered_once_and_the_next_one_works(
    bench: Bench, raised: Exception, kind: type[BackendError], message: str
) -> None:
    def fail(job: Job) -> Summary:
        if job.prompt == [0]:
            raise raised
        return SUMMARY

    bench.act = fail
    bench.gate.set()
    failing, next_one = bench.submit(0), bench.submit(1)
    bench.worker.close()
    assert kinds(failing, next_one) == [[kind], [Summary]]
    assert str(failing.finals[0]) == message
    assert len(bench.errors) == 1


def test_broken_connection_does_not_end_the_worker(bench: Bench) -> None:
    bench.gate.set()
    broken = FakeReply()
    broken.broken = True
    bench.submit(0, broken)
    next_one = bench.submit(1)
    bench.worker.close()
    assert kinds(broken, next_one) == [[Summary], [Summary]]
    assert bench.errors == ["an answer could not be delivered: ConnectionError('broken pipe')"]


def test_close_lets_queued_ones_end_and_refuses_new_ones(bench: Bench, wait_until: Wait) -> None:
    replies = [bench.submit(number) for number in range(3)]
    closing = threading.Thread(target=bench.worker.close)
    closing.start()

    def refused() -> bool:
        try:
            bench.submit(9)
        except Unavailable as error:
            return "unloaded" in str(error)
        return False

    wait_until(refused)
    assert closing.is_alive()
    bench.gate.set()
    closing.join(5)
    assert not closing.is_alive()
    assert [reply.finals for reply in replies] == [[SUMMARY]] * 3
    bench.worker.close()  # again, and it returns


def test_every_job_of_many_threads_gets_one_final_answer() -> None:
    bench = Bench(queue_size=512)
    bench.gate.set()

    def act(job: Job) -> Summary:
        if job.prompt[0] % 3 == 0:
            raise RuntimeError("every third")
        return SUMMARY

    bench.act = act
    replies: list[FakeReply] = []

    def client(first: int) -> None:
        for number in range(first, first + 50):
            replies.append(bench.submit(number))

    threads: list[Any] = [threading.Thread(target=client, args=(start,)) for start in range(0, 400, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bench.worker.close()
    assert len(replies) == 400
    assert all(len(reply.finals) == 1 for reply in replies)
