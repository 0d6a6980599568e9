"""One case each: sharing, recovery, preemption, deadlines, clients that leave, and what goes out when."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import pytest
from llamacpp_backend.engine.clients import KEEP_ALIVE_AFTER, LOOK_EVERY
from llamacpp_backend.engine.job import Job
from llamacpp_backend.engine.prompt_cache import CacheLimits
from llamacpp_backend.engine.runner import Chunk
from llamacpp_backend.errors import BadRequest, Cancelled, DeadlineExceeded, EngineFailure

from tests.unit.engine_core.bench import SMALL_CACHE, Bench, Reply, expected, reply_of, sampling
from tests.unit.engine_core.fake_runner import END, FakeRunner, Faults

PROMPT = [7, 8, 9, 10, 11, 12, 13, 14]
both_kinds = pytest.mark.parametrize("can_rewind", [True, False], ids=["dense", "hybrid"])


def check(job: Job, runner: FakeRunner) -> None:
    """The job's answers are those made alone."""
    for index, summary in enumerate(reply_of(job).summaries):
        text, reason, _ = expected(job.prompt, job.sampling, index, runner.n_ctx, runner.n_end)
        assert (reply_of(job).text(index), summary.finish_reason) == (text, reason)


def prefilled(runner: FakeRunner, slots: Sequence[int] | None = None) -> int:
    """Tokens of prompts that were computed: of chunks that are longer than one, or end without logits."""
    return sum(len(chunk.tokens) for step in runner.steps for chunk in step if slots is None or chunk.slot in slots)


# -- answers -----------------------------------------------------------------------------------------------------------


def test_the_first_step_of_several_prompts_is_one_step() -> None:
    bench = Bench(FakeRunner(4, n_batch=64))
    jobs = [bench.submit([20 + number, *PROMPT], max_tokens=1) for number in range(4)]
    bench.run()
    assert len(bench.runner.steps) == 1
    for job in jobs:
        check(job, bench.runner)


def test_a_new_request_joins_between_two_steps() -> None:
    bench = Bench(FakeRunner(2))
    first = bench.submit(PROMPT, max_tokens=12, ignore_eos=True)
    for _ in range(3):
        bench.core.turn()
    second = bench.submit([30, *PROMPT], max_tokens=3, ignore_eos=True)
    bench.run()
    assert [chunk.slot for chunk in bench.runner.steps[4]] == [0, 1]
    check(first, bench.runner)
    check(second, bench.runner)


@pytest.mark.parametrize(("arriving", "is_burst"), [(1, False), (2, True), (3, True)])
def test_prompts_that_outnumber_the_running_answers_are_read_in_whole_batches(arriving: int, is_burst: bool) -> None:
    bench = Bench(FakeRunner(8, n_ctx=256, n_batch=256), max_added_latency_ms=1e-6)
    running = bench.submit(PROMPT, max_tokens=40, ignore_eos=True)
    for _ in range(6):
        bench.core.turn()
    jobs = [bench.submit([20 + number] * 60, max_tokens=2) for number in range(arriving)]
    bench.core.turn()
    tokens = sum(len(chunk.tokens) for chunk in bench.runner.steps[-1])
    assert (tokens == 1 + 60 * arriving) == is_burst, tokens
    bench.run()
    for job in (running, *jobs):
        check(job, bench.runner)


def test_who_comes_after_a_burst_is_no_part_of_it() -> None:
    bench = Bench(FakeRunner(8, n_ctx=256, n_batch=256), max_added_latency_ms=1e-6)
    bench.submit(PROMPT, max_tokens=200, ignore_eos=True)
    for _ in range(6):
        bench.core.turn()
    for number in range(2):
        bench.submit([20 + number] * 60, max_tokens=100, ignore_eos=True)
    for _ in range(3):
        bench.core.turn()
    bench.submit([30] * 60, max_tokens=2)
    bench.core.turn()
    assert sum(len(chunk.tokens) for chunk in bench.runner.steps[-1]) < 60


def test_the_lowest_free_slot_is_given() -> None:
    bench = Bench(FakeRunner(3))
    jobs = [bench.submit([20 + number] * 9, max_tokens=20, ignore_eos=True) for number in range(3)]
    bench.core.turn()
    bench.leave(jobs[1])
    bench.leave(jobs[0])
    bench.submit([30] * 9, max_tokens=20)
    bench.core.turn()
    assert bench.runner.steps[-1][0].tokens[-1] == 30
    assert bench.runner.steps[-1][0].slot == 0


@both_kinds
@pytest.mark.parametrize("cached", [True, False])
def test_n_answers_share_one_prefill(can_rewind: bool, cached: bool) -> None:
    runner = FakeRunner(4, can_rewind=can_rewind)
    bench = Bench(runner)
    job = bench.submit(PROMPT, n=3, seed=5, temperature=1.0, max_tokens=1, ignore_eos=True, cache_prompt=cached)
    bench.run()
    check(job, runner)
    assert prefilled(runner) == len(PROMPT)
    summaries = reply_of(job).summaries
    assert [summary.seed for summary in summaries] == [5, 6, 7]
    assert [summary.cached_tokens for summary in summaries] == [0, len(PROMPT), len(PROMPT)]
    assert len({reply_of(job).text(index) for index in range(3)}) > 1


@both_kinds
def test_more_answers_than_slots_use_the_first_ones_prompt_later(can_rewind: bool) -> None:
    runner = FakeRunner(2, can_rewind=can_rewind)
    bench = Bench(runner)
    job = bench.submit(PROMPT, n=5, seed=5, max_tokens=4, ignore_eos=True)
    bench.run()
    check(job, runner)
    assert [summary.cached_tokens for summary in reply_of(job).summaries] == [0, 8, 7, 8, 7]


@both_kinds
def test_a_request_waits_for_the_prefix_that_another_is_computing(can_rewind: bool) -> None:
    runner = FakeRunner(2, n_batch=4, can_rewind=can_rewind)
    bench = Bench(runner)
    first = bench.submit([*PROMPT, *PROMPT, 30], max_tokens=3)
    second = bench.submit([*PROMPT, *PROMPT, 31, 32], max_tokens=3)
    bench.run()
    check(first, runner)
    check(second, runner)
    assert reply_of(second).summaries[0].cached_tokens == 16
    assert runner.calls["copy"] == 1


@both_kinds
def test_a_follower_whose_leader_is_given_up_goes_on_alone(can_rewind: bool) -> None:
    runner = FakeRunner(2, n_batch=4, can_rewind=can_rewind)
    bench = Bench(runner)
    first = bench.submit([*PROMPT, *PROMPT, 30], max_tokens=3)
    second = bench.submit([*PROMPT, *PROMPT, 31, 32], max_tokens=3)
    bench.core.turn()
    bench.leave(first)
    bench.run()
    check(second, runner)
    assert reply_of(second).summaries[0].cached_tokens == 4


def test_max_tokens_and_the_window_both_end_an_answer_with_length() -> None:
    bench = Bench(FakeRunner(1, n_ctx=16))
    assert bench.ask(PROMPT, max_tokens=3, ignore_eos=True).summaries[0].completion_tokens == 3
    summary = bench.ask(PROMPT, max_tokens=100, ignore_eos=True).summaries[0]
    assert (summary.finish_reason, summary.completion_tokens) == ("length", 8)


def test_min_tokens_puts_the_end_off() -> None:
    runner = FakeRunner(1)
    runner.n_end = 200  # nearly every token is an end
    bench = Bench(runner)
    assert bench.ask(PROMPT, max_tokens=20).summaries[0].completion_tokens <= 3
    job = bench.submit(PROMPT, max_tokens=20, min_tokens=10)
    bench.run()
    check(job, runner)
    assert 10 <= reply_of(job).summaries[0].completion_tokens <= 14
    assert bench.ask(PROMPT, max_tokens=20, ignore_eos=True).summaries[0].completion_tokens == 20


def test_logprobs_come_with_the_text_and_their_bytes() -> None:
    bench = Bench(FakeRunner(1))
    reply = bench.ask(PROMPT, logprobs=2, max_tokens=5, ignore_eos=True)
    infos = reply.infos()
    assert len(infos) == 5
    assert b"".join(info.text_bytes for info in infos).decode("utf-8", "replace") == reply.text()
    assert infos[0].logprob == -0.5
    assert infos[0].top == ((6, b"g", -1.0), (7, b"h", -2.0))


def test_timings_and_figures() -> None:
    bench = Bench(FakeRunner(1))
    first = bench.submit(PROMPT, max_tokens=3, ignore_eos=True)
    second = bench.submit(PROMPT, max_tokens=3, ignore_eos=True)
    bench.run()
    timings = [reply_of(job).summaries[0].timings for job in (first, second)]
    for one in timings:
        assert one.queue_ms is not None
        assert one.prefill_ms is not None
        assert one.ttft_ms == pytest.approx(one.queue_ms + one.prefill_ms)
        assert one.decode_ms is not None
        assert one.decode_ms > 0
    assert (timings[1].queue_ms or 0) > (timings[0].queue_ms or 0)
    metrics = bench.metrics
    assert metrics.prompt_tokens.value == 16
    assert metrics.prefix_queries.value == 16
    assert metrics.prefix_hits.value == metrics.prompt_tokens_cached.value == 7
    assert metrics.generation_tokens.value == 6
    assert metrics.finished["length"].value == 2
    assert sum(metrics.ttft.counts) == sum(metrics.end_to_end.counts) == sum(metrics.queue_time.counts) == 2
    assert sum(metrics.inter_token.counts) == 4
    assert metrics.step_tokens.total == 8 + 2 + 1 + 2
    bench.submit([30] * 8)
    bench.submit([31] * 8)
    bench.core.turn()
    bench.core.update_gauges()
    assert (metrics.running.value, metrics.waiting.value, metrics.kv_usage.value) == (1, 1, 8 / 64)


# -- the pace ----------------------------------------------------------------------------------------------------------


def test_a_long_prompt_keeps_to_the_time_that_it_may_add() -> None:
    runner = FakeRunner(2, n_ctx=2000, n_batch=512)
    bench = Bench(runner, SMALL_CACHE, max_added_latency_ms=50)

    def take_time(chunks: Sequence[Chunk]) -> None:
        bench.now += 0.001 * sum(len(chunk.tokens) for chunk in chunks)

    runner.on_decode = take_time
    stream = bench.submit(PROMPT, max_tokens=200, ignore_eos=True)
    for _ in range(10):
        bench.core.turn()
    long = bench.submit([30] * 1000, max_tokens=1)
    before = len(runner.steps)
    bench.run()
    beside = [step for step in runner.steps[before:] if len(step) == 2]
    assert max(len(step[1].tokens) for step in beside) <= 60
    assert len(beside) >= 1000 // 60
    assert all(len(step[0].tokens) == 1 for step in beside), "a stream missed a step"
    check(stream, runner)
    check(long, runner)


def test_when_nothing_decodes_a_prompt_gets_the_whole_batch() -> None:
    runner = FakeRunner(1, n_ctx=400, n_batch=100)
    bench = Bench(runner, SMALL_CACHE, max_added_latency_ms=1)
    bench.ask([30] * 250, max_tokens=1)
    assert [len(step[0].tokens) for step in runner.steps] == [100, 100, 50]


# -- failures ----------------------------------------------------------------------------------------------------------


@both_kinds
def test_after_a_failed_step_everyone_goes_on_with_the_same_answer(can_rewind: bool) -> None:
    runner = FakeRunner(3, can_rewind=can_rewind, faults=Faults(failed={3}))
    bench = Bench(runner)
    jobs = [bench.submit([20 + number, *PROMPT], max_tokens=8, ignore_eos=True) for number in range(3)]
    bench.run()
    for job in jobs:
        check(job, runner)
    assert bench.metrics.failed_steps.value == 1


def test_a_request_that_always_fails_takes_nobody_with_it() -> None:
    runner = FakeRunner(3)
    bench = Bench(runner)
    poison = 33

    def fail_on_poison(chunks: Sequence[Chunk]) -> None:
        if any(poison in chunk.tokens for chunk in chunks):
            runner.faults.failed.add(runner.calls["decode"] - 1)

    runner.on_decode = fail_on_poison
    good = [bench.submit([20 + number, *PROMPT], max_tokens=8, ignore_eos=True) for number in range(2)]
    bad = bench.submit([30, poison, *PROMPT])
    bench.run()
    assert isinstance(reply_of(bad).error, EngineFailure)
    assert "failed again" in str(reply_of(bad).error)
    for job in good:
        check(job, runner)
    assert runner.violations == []
    runner.on_decode = lambda _chunks: None
    assert bench.ask(PROMPT).summaries


def test_siblings_that_fail_together_leave_slots_that_are_known_to_the_last_token() -> None:
    runner = FakeRunner(2, faults=Faults(sample={4}))
    bench = Bench(runner)
    bench.submit(PROMPT, n=2, seed=1, max_tokens=9, ignore_eos=True)  # the first fails before the second has its turn
    bench.run()
    job = bench.submit([*runner.holds(1), 20, 21], max_tokens=2)
    bench.run()
    check(job, runner)
    assert runner.violations == []


def test_room_that_llama_cpp_has_not_is_not_asked_for_again_and_again() -> None:
    runner = FakeRunner(2)
    bench = Bench(runner)

    def fail_two(chunks: Sequence[Chunk]) -> None:
        if len(chunks) == 2 and runner.n_held > 24:
            runner.faults.no_room.add(runner.calls["decode"] - 1)

    runner.on_decode = fail_two
    jobs = [bench.submit([20 + number, *PROMPT], max_tokens=12, ignore_eos=True) for number in range(2)]
    bench.run()
    for job in jobs:
        check(job, runner)
    assert bench.metrics.preemptions.value == 1


def test_who_was_preempted_comes_before_those_that_never_ran() -> None:
    runner = FakeRunner(2, faults=Faults(no_room={4}))
    bench = Bench(runner)
    jobs = [bench.submit([20 + number, *PROMPT], max_tokens=10, ignore_eos=True) for number in range(4)]
    bench.run()
    assert bench.metrics.preemptions.value == 1
    timings = [reply_of(job).summaries[0].timings for job in jobs]
    assert (timings[3].queue_ms or 0) > (timings[1].ttft_ms or 0) + (timings[1].decode_ms or 0)
    for job in jobs:
        check(job, runner)


def test_without_room_the_newest_gives_way_and_comes_back() -> None:
    runner = FakeRunner(2, faults=Faults(no_room={4}))
    bench = Bench(runner)
    old = bench.submit([20, *PROMPT], max_tokens=10, ignore_eos=True)
    new = bench.submit([21, *PROMPT], max_tokens=10, ignore_eos=True)
    bench.run()
    check(old, runner)
    check(new, runner)
    assert bench.metrics.preemptions.value == 1
    old_done = max(at for at, step in enumerate(runner.steps) if step[0].slot == 0 and len(step[0].tokens) == 1)
    assert len(runner.steps[4]) == 1
    assert old_done > 8


def test_room_that_never_comes_is_an_error_after_one_more_try() -> None:
    runner = FakeRunner(1, faults=Faults(no_room=set(range(100))))
    bench = Bench(runner)
    assert "no room" in str(bench.ask(PROMPT).error)
    assert runner.calls["decode"] == 2


def test_a_shared_pool_is_never_overdrawn() -> None:
    runner = FakeRunner(4, n_ctx=64, n_cells=64)
    bench = Bench(runner)
    jobs = [bench.submit([20 + number, *PROMPT], max_tokens=20, ignore_eos=True) for number in range(6)]
    bench.run()
    for job in jobs:
        check(job, runner)
    assert runner.violations == []
    assert bench.metrics.preemptions.value > 0


def test_a_state_that_is_refused_costs_only_time() -> None:
    runner = FakeRunner(1, faults=Faults(restore={0}))
    bench = Bench(runner)
    for prompt in (PROMPT, [30] * 9, PROMPT):
        job = bench.submit(prompt, max_tokens=2)
        bench.run()
        check(job, runner)
    assert runner.calls["restore"] == 1
    assert reply_of(job).summaries[0].cached_tokens == 0


def test_what_can_not_be_built_is_refused_and_the_next_one_served() -> None:
    bench = Bench(FakeRunner(1))
    bad = Job(PROMPT, sampling(grammar="bad"), Reply())
    bench.core.accept(bad, bench.now)
    good = bench.submit(PROMPT)
    bench.run()
    assert isinstance(reply_of(bad).error, BadRequest)
    check(good, bench.runner)


def test_a_failing_choice_fails_its_own_job_alone() -> None:
    runner = FakeRunner(2, faults=Faults(sample={2}))
    bench = Bench(runner)
    jobs = [bench.submit([20 + number, *PROMPT], max_tokens=5, ignore_eos=True) for number in range(2)]
    bench.run()
    assert isinstance(reply_of(jobs[0]).error, EngineFailure)
    check(jobs[1], runner)


def test_an_unforeseen_error_ends_every_job_and_leaves_clean_slots() -> None:
    runner = FakeRunner(2)
    bench = Bench(runner)
    jobs = [bench.submit([20 + number, *PROMPT], max_tokens=50) for number in range(4)]
    bench.core.turn()
    bench.core.abandon(EngineFailure("internal"))
    assert all(isinstance(reply_of(job).error, EngineFailure) for job in jobs)
    assert runner.n_held == 0
    assert (bench.core.n_free, bench.core.n_unstarted, bench.core.is_busy) == (2, 0, False)
    job = bench.submit(PROMPT)
    bench.run()
    check(job, runner)


# -- clients -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", [0, 1, 6], ids=["waiting", "prefill", "decode"])
def test_a_job_whose_client_goes_gives_up_its_slot_at_once(turns: int) -> None:
    bench = Bench(FakeRunner(1, n_batch=4))
    job = bench.submit(PROMPT * 2, max_tokens=40, ignore_eos=True)
    other = bench.submit([30, *PROMPT], max_tokens=2)
    for _ in range(turns):
        bench.core.turn()
    bench.leave(job)
    bench.core.turn()
    assert isinstance(reply_of(job).error, Cancelled)
    assert bench.runner.steps[-1][0].tokens[0] == 30
    bench.run()
    check(other, bench.runner)
    assert len(reply_of(job).finals) == 1
    assert bench.metrics.finished["abort"].value == 1


def test_a_client_that_has_gone_is_noticed_within_its_interval() -> None:
    bench = Bench(FakeRunner(1))
    job = bench.submit(PROMPT, max_tokens=50, ignore_eos=True)
    bench.core.turn()
    reply_of(job).gone = True
    bench.core.turn()
    assert not reply_of(job).finals, "clients are not asked at each step"
    bench.now += LOOK_EVERY
    bench.core.turn()
    assert isinstance(reply_of(job).error, Cancelled)


def test_a_client_that_waits_is_kept_alive_twice_a_second() -> None:
    bench = Bench(FakeRunner(1))
    talking = bench.submit(PROMPT, max_tokens=50, ignore_eos=True)
    waiting = bench.submit([30], max_tokens=1)
    started = bench.now
    while bench.now - started < 10 * KEEP_ALIVE_AFTER and not reply_of(talking).finals:
        bench.core.turn()
        bench.now += 0.1
    assert reply_of(talking).keep_alives == 0
    assert reply_of(waiting).keep_alives == pytest.approx((bench.now - started) / KEEP_ALIVE_AFTER, abs=2)


def test_a_broken_delivery_ends_that_job_only() -> None:
    bench = Bench(FakeRunner(2))
    broken = bench.submit([20, *PROMPT], max_tokens=20, ignore_eos=True)
    other = bench.submit([21, *PROMPT], max_tokens=20, ignore_eos=True)
    reply_of(broken).breaks_at = 2
    bench.run()
    assert isinstance(reply_of(broken).error, EngineFailure)
    check(other, bench.runner)
    assert any("broken pipe" in line for line in bench.errors)


class Mute(Reply):
    """A client whose every call fails."""

    def client_gone(self) -> bool:
        raise ConnectionError("asked")

    def finish(self, answers: object) -> None:
        super().finish([])
        raise ConnectionError("finish")

    def fail(self, error: Exception) -> None:
        self.finals.append(EngineFailure(str(error)))
        raise ConnectionError("fail")


@pytest.mark.parametrize("asked", [True, False])
def test_a_reply_that_always_raises_is_told_its_end_once_and_nothing_else_suffers(asked: bool) -> None:
    bench = Bench(FakeRunner(1))
    reply = Mute()
    if not asked:
        bench.core.turn()  # the next look is some steps away
        bench.core._clients.next_look = bench.now + 100
    bench.core.accept(Job(PROMPT, sampling(max_tokens=1), reply), bench.now)
    bench.run()
    assert len(reply.finals) == (1 if asked else 2)
    assert bench.core.n_free == 1
    job = bench.submit(PROMPT)
    bench.run()
    check(job, bench.runner)


class Unfinished(Reply):
    """A client whose answer can't be put together."""

    def finish(self, answers: object) -> None:
        raise ValueError("planted")


def test_a_client_whose_answer_can_not_be_delivered_gets_an_error() -> None:
    bench = Bench(FakeRunner(1))
    reply = Unfinished()
    bench.core.accept(Job(PROMPT, sampling(max_tokens=1), reply), bench.now)
    bench.run()
    assert isinstance(reply.error, EngineFailure)
    assert "planted" in str(reply.error)


@both_kinds
def test_an_idle_engine_holds_no_answers(can_rewind: bool) -> None:
    bench = Bench(FakeRunner(4, can_rewind=can_rewind))
    for n in (1, 3, 4):
        job = bench.submit([20 + n, *PROMPT], n=n, seed=5, max_tokens=1, ignore_eos=True)
        reply = weakref.ref(job.reply)
        del job
        bench.run()
        assert reply() is None


def test_jobs_end_although_clearing_them_away_fails() -> None:
    bench = Bench(FakeRunner(2))
    jobs = [bench.submit([20 + number, *PROMPT], max_tokens=20, ignore_eos=True) for number in range(4)]
    for _ in range(3):
        bench.core.turn()

    def fail() -> None:
        raise OSError("planted")

    bench.runner.samplers[0].close = fail  # type: ignore[method-assign]
    bench.core.abandon(EngineFailure("the end"))
    assert not bench.core.is_busy
    assert [str(reply_of(job).error) for job in jobs] == ["the end"] * 4
    assert (bench.core.n_free, bench.core.n_unstarted) == (2, 0)
    job = bench.submit(PROMPT)
    bench.run()
    check(job, bench.runner)


def test_a_deadline_ends_an_answer_with_what_there_is() -> None:
    bench = Bench(FakeRunner(1))
    job = bench.submit(PROMPT, bench.now + 1, max_tokens=50, ignore_eos=True)
    for _ in range(5):
        bench.core.turn()
    bench.now += 1
    bench.core.turn()
    summary = reply_of(job).summaries[0]
    assert summary.finish_reason == "deadline"
    assert 1 <= summary.completion_tokens <= 5
    assert reply_of(job).text()
    assert bench.metrics.finished["deadline"].value == 1


@pytest.mark.parametrize("turns", [0, 1])
def test_a_deadline_before_any_text_is_an_error(turns: int) -> None:
    bench = Bench(FakeRunner(1, n_batch=4))
    job = bench.submit(PROMPT, bench.now + 1)
    for _ in range(turns):
        bench.core.turn()
    bench.now += 1
    bench.core.turn()
    assert isinstance(reply_of(job).error, DeadlineExceeded)
    assert not bench.core.is_busy


def test_a_deadline_ends_those_of_n_answers_that_are_not_complete() -> None:
    bench = Bench(FakeRunner(1))
    job = bench.submit(PROMPT, bench.now + 1, n=3, seed=1, max_tokens=6, ignore_eos=True)
    for _ in range(9):
        bench.core.turn()
    bench.now += 1
    bench.core.turn()
    assert [summary.finish_reason for summary in reply_of(job).summaries] == ["length", "deadline", "deadline"]


# -- the cache ---------------------------------------------------------------------------------------------------------


@both_kinds
def test_the_next_turn_of_a_chat_computes_only_what_is_new(can_rewind: bool) -> None:
    runner = FakeRunner(1, can_rewind=can_rewind)
    bench = Bench(runner)
    chat = [*PROMPT, END, 20, 21, 22, END, 30]
    bench.ask(chat, max_tokens=4, ignore_eos=True)
    job = bench.submit([*runner.holds(0), 25, 26, END, 30], max_tokens=4)
    held = len(runner.holds(0))
    bench.run()
    check(job, runner)
    assert reply_of(job).summaries[0].cached_tokens == held


def test_a_hybrid_comes_back_to_a_place_where_requests_were_seen_to_part() -> None:
    runner = FakeRunner(1, can_rewind=False)
    bench = Bench(runner, CacheLimits(1 << 20, 0, 1, 1))
    common = [20, 21, 22, 23, 24, 25, 26]
    found = [bench.ask([*common, 30 + number, 31], max_tokens=2).summaries[0].cached_tokens for number in range(4)]
    assert found == [0, 0, len(common), len(common)]


@both_kinds
def test_a_conversation_that_was_pushed_out_is_restored(can_rewind: bool) -> None:
    runner = FakeRunner(1, can_rewind=can_rewind)
    bench = Bench(runner)
    bench.ask(PROMPT, max_tokens=2, ignore_eos=True)
    before = runner.holds(0)
    bench.ask([30] * 12, max_tokens=2)
    job = bench.submit([*before, 20, 21], max_tokens=2)
    bench.run()
    check(job, runner)
    assert reply_of(job).summaries[0].cached_tokens == len(before)
    assert runner.calls["restore"] == 1


def test_without_memory_slots_are_still_used_again_the_oldest_goes_first() -> None:
    runner = FakeRunner(2)
    bench = Bench(runner, CacheLimits(0, 0, min_reuse=1, min_save=1))
    for prompt in ([20] * 9, [30] * 9):
        bench.ask(prompt, max_tokens=1)
    assert [bench.ask([first] * 9, max_tokens=1).summaries[0].cached_tokens for first in (20, 30)] == [8, 8]
    assert "save" not in runner.calls
    assert bench.core.cache.n_bytes == 0


def test_what_must_not_be_cached_is_not_used_by_others_nor_uses_them() -> None:
    runner = FakeRunner(1)
    bench = Bench(runner)
    assert bench.ask(PROMPT, cache_prompt=False).summaries[0].cached_tokens == 0
    assert runner.n_held == 0
    assert bench.ask(PROMPT).summaries[0].cached_tokens == 0
    assert bench.ask(PROMPT, cache_prompt=False).summaries[0].cached_tokens == 0
    assert "save" in runner.calls, "what the others had is kept all the same"


def test_what_must_not_be_cached_is_not_copied_while_it_runs() -> None:
    runner = FakeRunner(2)
    bench = Bench(runner)
    bench.submit(PROMPT, max_tokens=20, ignore_eos=True, cache_prompt=False)
    for _ in range(3):
        bench.core.turn()
    other = bench.submit(PROMPT, max_tokens=2)
    bench.run()
    assert reply_of(other).summaries[0].cached_tokens == 0
    assert "copy" not in runner.calls


def test_room_for_a_copy_is_not_made_by_dropping_what_is_copied() -> None:
    runner = FakeRunner(3, n_batch=64, n_cells=64)
    bench = Bench(runner)
    bench.submit([20] * 30, max_tokens=1)
    follower = bench.submit([*([20] * 18), 21, 22], max_tokens=3)
    bench.submit([30] * 14, max_tokens=1)
    bench.run()
    check(follower, runner)
    assert reply_of(follower).summaries[0].cached_tokens == 18
    assert runner.violations == []


@both_kinds
def test_a_follower_that_goes_another_way_at_the_end_is_not_taken_for_the_same(can_rewind: bool) -> None:
    runner = FakeRunner(2, n_batch=64, can_rewind=can_rewind)
    bench = Bench(runner)
    jobs = [bench.submit([*PROMPT, 30 + number], max_tokens=3, ignore_eos=True) for number in range(2)]
    bench.run()
    for job in jobs:
        check(job, runner)
    assert reply_of(jobs[1]).summaries[0].cached_tokens == len(PROMPT)


def test_the_store_is_bounded_and_forgets_the_oldest() -> None:
    runner = FakeRunner(1, n_ctx=64, state_bytes=1000)
    bench = Bench(runner, CacheLimits(5000, 0, 1, 1))
    for first in range(10, 20):
        bench.ask([first] * 9, max_tokens=1)
        assert bench.core.cache.n_bytes <= 5000
    assert 2 <= bench.core.cache.n_entries <= 4
    assert bench.ask([10] * 9, max_tokens=1).summaries[0].cached_tokens == 0
    assert bench.ask([19] * 9, max_tokens=1).summaries[0].cached_tokens == 8


def test_a_state_larger_than_all_memory_is_not_saved_twice() -> None:
    runner = FakeRunner(1, state_bytes=6000)
    bench = Bench(runner, CacheLimits(5000, 0, 1, 1))
    for first in range(10, 14):
        bench.ask([first] * 9, max_tokens=1)
    assert runner.calls["state_bytes"] == 1
    assert "save" not in runner.calls, "it would take the memory that it must not have"


@both_kinds
def test_a_state_that_can_not_be_saved_costs_no_job(can_rewind: bool) -> None:
    runner = FakeRunner(1, can_rewind=can_rewind, faults=Faults(save=set(range(100))))
    bench = Bench(runner)
    running = [bench.submit([20 + number] * 20, max_tokens=2) for number in range(3)]
    bench.run()
    for job in running:
        check(job, runner)
    assert bench.core.cache.n_bytes == 0
    assert any("could not be saved" in line and "planted" in line for line in bench.errors)
    assert not any("failed" in line for line in bench.errors)


def test_checkpoints_of_a_long_prompt_keep_the_system_prompt_and_the_last() -> None:
    runner = FakeRunner(1, n_ctx=1000, n_batch=64, can_rewind=False, state_bytes=1000)
    bench = Bench(runner, CacheLimits(20_000, 0, 1, 1))
    system = [*([20] * 39), END]
    turns = [[*([21 + number] * 39), END] for number in range(8)]
    prompt = [token for part in (system, *turns) for token in part]
    bench.ask([*prompt, 30], max_tokens=1)
    assert bench.core.cache.n_bytes <= 20_000
    assert bench.ask([*prompt, 31], max_tokens=1).summaries[0].cached_tokens == len(prompt)
    assert bench.ask([*system, 31, 32], max_tokens=1).summaries[0].cached_tokens == len(system)


def test_an_engine_with_more_slots_than_a_step_has_room_for_is_refused() -> None:
    with pytest.raises(ValueError, match="n_batch is 4; allowed is n_parallel \\(5\\) or more"):
        Bench(FakeRunner(5, n_batch=4))
