"""Whatever order of arrivals, exits and failures: each finished answer is the one made alone, and nothing leaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from llamacpp_backend.engine import checkpoints
from llamacpp_backend.engine.job import Job
from llamacpp_backend.engine.prompt_cache import CacheLimits
from llamacpp_backend.errors import Cancelled, DeadlineExceeded, EngineFailure

from tests.unit.engine_core.bench import Bench, Reply, expected, reply_of, sampling
from tests.unit.engine_core.fake_runner import END, FakeRunner, Faults

# Prompts are made of these, so that they share beginnings of all kinds; END stands for the end of a turn.
PARTS = [[7, 8, 9, END], [7, 8, 9, 10, 11, 12, END], [20] * 9, [21, END], [30, 31], [9]]

prompts = st.lists(st.sampled_from(PARTS), min_size=1, max_size=6).map(lambda parts: list(chain(*parts)))
numbers = st.sets(st.integers(0, 60), max_size=6)


@dataclass(frozen=True)
class Arrival:
    """A job that comes `after` so many turns, and perhaps goes again."""

    after: int
    prompt: list[int]
    given: dict[str, Any]
    leaves_after: int | None
    breaks_at: int
    deadline_in: float | None


arrivals = st.builds(
    Arrival,
    after=st.integers(0, 6),
    prompt=prompts,
    given=st.fixed_dictionaries(
        {"max_tokens": st.integers(1, 20)},
        optional={
            "n": st.integers(1, 4),
            "seed": st.integers(0, 5),
            "min_tokens": st.integers(0, 1),
            "ignore_eos": st.booleans(),
            "cache_prompt": st.sampled_from([True, True, False]),
            "stop": st.sampled_from([["ab"], ["x", "yz"], ["é"]]),
            "logprobs": st.integers(0, 2),
        },
    ),
    leaves_after=st.none() | st.none() | st.integers(0, 12),
    breaks_at=st.sampled_from([-1, -1, -1, 0, 2]),
    deadline_in=st.none() | st.none() | st.floats(0.0, 0.01),
)
faults = st.builds(Faults, no_room=numbers, failed=numbers, restore=numbers, copy=numbers, sample=numbers, save=numbers)
runners = st.builds(
    lambda n_slots, n_batch, can_rewind, spare, faults: FakeRunner(
        n_slots,
        64,
        n_batch,
        n_cells=64 + (n_slots - 1) * spare,
        can_rewind=can_rewind,
        faults=faults,
    ),
    n_slots=st.integers(1, 4),
    n_batch=st.integers(4, 20),
    can_rewind=st.booleans(),
    spare=st.sampled_from([64, 64, 20, 0]),
    faults=st.just(Faults()) | faults,
)
caches = st.builds(
    CacheLimits,
    n_bytes=st.sampled_from([0, 500, 2000, 1 << 20]),
    checkpoint_every=st.sampled_from([0, 4, 9]),
    min_reuse=st.integers(1, 5),
    min_save=st.integers(1, 8),
)


@pytest.fixture(autouse=True, scope="module")
def _near_checkpoints() -> Any:
    """Prompts here have tens of tokens, not thousands."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "TURN_SPACING", 1)
        patch.setattr(checkpoints, "SPACING", 3)
        patch.setattr(checkpoints, "TAIL", 5)
        yield


def play(bench: Bench, coming: list[Arrival], each_turn: Callable[[], None]) -> list[tuple[Arrival, Job]]:
    """Let jobs come and go until all have ended."""
    jobs: list[tuple[Arrival, Job]] = []
    due: list[tuple[int, Callable[[], None]]] = []
    turn = 0
    for arrival in coming:
        turn += arrival.after

        def come(arrival: Arrival = arrival, turn: int = turn) -> None:
            deadline = None if arrival.deadline_in is None else bench.now + arrival.deadline_in
            reply = Reply()
            reply.breaks_at = arrival.breaks_at
            job = Job(arrival.prompt, sampling(**arrival.given), reply, deadline)
            bench.core.accept(job, bench.now)
            jobs.append((arrival, job))
            if arrival.leaves_after is not None:
                due.append((turn + arrival.leaves_after, lambda: bench.leave(job)))

        due.append((turn, come))
    for turn in range(3000):
        for item in [item for item in due if item[0] <= turn]:
            due.remove(item)
            item[1]()
        if not due and not bench.core.is_busy:
            return jobs
        bench.core.turn()
        each_turn()
    raise AssertionError("some job never ended")


def check_answers(bench: Bench, arrival: Arrival, job: Job) -> None:
    """The job's one final call, and that what was sent is what alone would have been."""
    reply = reply_of(job)
    assert len(reply.finals) == 1
    final = reply.finals[0]
    wanted = [expected(arrival.prompt, job.sampling, index, 64) for index in range(job.sampling.n)]
    raw = [_raw(job, index) for index in range(job.sampling.n)]
    if isinstance(final, Exception):
        event(type(final).__name__)
        for index in range(job.sampling.n):
            assert wanted[index][0].startswith(reply.text(index))
        if isinstance(final, Cancelled):
            assert arrival.leaves_after is not None
        elif isinstance(final, DeadlineExceeded):
            assert arrival.deadline_in is not None
            assert not reply.pieces
        else:
            assert isinstance(final, EngineFailure)
            assert bench.runner.faults.can_fail_jobs or arrival.breaks_at >= 0
        return
    assert len(final) == job.sampling.n
    for index, summary in enumerate(final):
        event(summary.finish_reason)
        text, reason, tokens = wanted[index]
        if summary.finish_reason == "deadline":
            assert arrival.deadline_in is not None
            assert raw[index].startswith(reply.text(index).rstrip("\ufffd"))
            continue
        assert (reply.text(index), summary.finish_reason) == (text, reason)
        assert summary.completion_tokens == len(tokens)
        assert summary.prompt_tokens == len(arrival.prompt)
        assert 0 <= summary.cached_tokens <= len(arrival.prompt)
        assert summary.seed == (None if job.sampling.seed is None else job.sampling.seed + index)
        if job.sampling.logprobs is not None:
            infos = reply.infos(index)
            assert [info.token for info in infos] == tokens[: len(infos)]
            assert b"".join(info.text_bytes for info in infos).decode("utf-8", "replace") == text
    cached = [summary.cached_tokens for summary in final]
    if not job.sampling.cache_prompt and job.sampling.n == 1:
        assert cached == [0]
    event(f"cached: {any(cached)}")


def _raw(job: Job, index: int) -> str:
    return expected(list(job.prompt), sampling(**{**_given(job), "stop": []}), index, 64)[0]


def _given(job: Job) -> dict[str, Any]:
    wanted = job.sampling
    given: dict[str, Any] = {"max_tokens": wanted.max_tokens, "min_tokens": wanted.min_tokens}
    return given | {"ignore_eos": wanted.ignore_eos} | ({} if wanted.seed is None else {"seed": wanted.seed})


@given(runners, caches, st.lists(arrivals, min_size=1, max_size=10))
@settings(max_examples=500, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_every_answer_is_the_one_made_alone(runner: FakeRunner, cache: CacheLimits, coming: list[Arrival]) -> None:
    bench = Bench(runner, cache)

    def memory_is_bounded() -> None:
        assert bench.core.cache.n_bytes <= cache.n_bytes
        assert bench.core.n_free == runner.n_slots - bench.core.n_running

    for arrival, job in play(bench, coming, memory_is_bounded):
        check_answers(bench, arrival, job)
    assert runner.violations == []
    assert (bench.core.n_running, bench.core.n_waiting, bench.core.n_unstarted) == (0, 0, 0)
    assert bench.core.n_free == runner.n_slots
    assert all(sampler.closed for sampler in runner.samplers)
    check_ledger(bench)
    bench.core.abandon(EngineFailure("nobody is left"))
    assert runner.n_held == 0


def check_ledger(bench: Bench) -> None:
    """The cache's own count of its memory is what its blobs and token lists take."""
    cache: Any = bench.core.cache
    blobs = {id(blob): blob for slot in cache._slots for blob in slot.checkpoints.values()}
    blobs |= {id(blob): blob for entry in cache._store for blob in (entry.state, *entry.checkpoints.values())}
    tokens = sum(len(entry.tokens) for entry in cache._store)
    assert cache.n_bytes == sum(map(len, blobs.values())) + 8 * tokens


@given(runners.filter(lambda runner: not runner.faults.can_fail_jobs), st.lists(arrivals, min_size=1, max_size=8))
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_nothing_starves(runner: FakeRunner, coming: list[Arrival]) -> None:
    """The oldest answer that has a slot gets tokens but for steps that measure one without prefill: one a slot."""
    bench = Bench(runner, CacheLimits(1 << 20, 8, min_reuse=1, min_save=1))
    core: Any = bench.core
    last: list[tuple[int, int]] = []

    def oldest_gets_on() -> None:
        if core._roster.running:
            oldest = min(core._roster.running, key=lambda answer: answer.number)
            last.append((oldest.number, oldest.fed))
            assert len(set(last[-runner.n_slots - 1 :])) > 1 or len(last) <= runner.n_slots

    play(bench, coming, oldest_gets_on)
