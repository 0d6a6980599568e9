"""What a step feeds: decodes always, the oldest prefill always, short prompts before long ones, never too much."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from llamacpp_backend.engine.job import Job
from llamacpp_backend.engine.scheduler import newest, next_to_admit, plan_step, share_out
from llamacpp_backend.engine.sequence import Answer, State
from llamacpp_backend.engine.ticket import Ticket

from tests.unit.engine_core.bench import Reply, sampling


def answer(number: int, length: int, fed: int = 0, slot: int = 0, state: State = State.PREFILL) -> Answer:
    """An answer that holds `fed` of `length` tokens."""
    made = Answer(Ticket(Job(range(length), sampling(), Reply()), 0.0), 0, number, sampling(), 4096)
    made.slot, made.fed, made.state = slot, fed, state
    return made


@st.composite
def running(draw: st.DrawFn) -> list[Answer]:
    """Answers with ascending slots and any ages."""
    count = draw(st.integers(1, 8))
    ages = draw(st.permutations(range(count)))
    slots = sorted(draw(st.sets(st.integers(0, 15), min_size=count, max_size=count)))
    made = []
    for age, slot in zip(ages, slots, strict=True):
        length = draw(st.integers(1, 50))
        if draw(st.booleans()):
            made.append(answer(age, length, length - 1, slot, State.DECODE))
        else:
            one = answer(age, length, draw(st.integers(0, length - 1)), slot)
            one.marks = sorted(draw(st.sets(st.integers(1, length), max_size=3)))
            made.append(one)
    return made


@given(running(), st.integers(16, 64), st.integers(0, 40))
def test_a_step_is_well_formed_and_leaves_nobody_out(answers: list[Answer], n_batch: int, budget: int) -> None:
    decoding = [one for one in answers if one.state is State.DECODE]
    filling = sorted((one for one in answers if one.state is State.PREFILL), key=lambda one: one.number)
    step = plan_step(answers, n_batch, len(decoding), budget)
    assert [chunk.slot for chunk in step.chunks] == [one.slot for one in step.answers]
    assert [chunk.slot for chunk in step.chunks] == sorted({chunk.slot for chunk in step.chunks})
    assert sum(len(chunk.tokens) for chunk in step.chunks) == step.n_decode + step.n_prefill <= n_batch
    fed = {one.number: chunk for one, chunk in zip(step.answers, step.chunks, strict=True)}
    assert all(one.number in fed for one in decoding)
    allowed = min(budget, n_batch - len(decoding)) if decoding else n_batch
    assert step.n_prefill <= allowed
    for one in step.answers:
        chunk = fed[one.number]
        end = one.fed + len(chunk.tokens)
        assert chunk.position == one.fed
        assert list(chunk.tokens) == one.tokens[one.fed : end]
        assert chunk.wants_logits == (end == len(one.tokens))
        assert not any(one.fed < mark < end for mark in one.marks)
    if filling and allowed:
        assert filling[0].number in fed
    wanted = {one.number: min([m for m in one.marks if m > one.fed] + [len(one.tokens)]) - one.fed for one in filling}
    # Whatever is left over is left over because nobody wants it.
    assert step.n_prefill == min(allowed, sum(wanted.values()))


def test_a_short_prompt_does_not_wait_behind_a_long_one() -> None:
    long, short = answer(0, 1000), answer(1, 20)
    assert share_out([long, short], 128) == {0: 108, 1: 20}


def test_the_oldest_gets_half_whatever_comes() -> None:
    crowd = [answer(0, 1000), *(answer(number, 10 + number) for number in range(1, 30))]
    assert share_out(crowd, 64)[0] == 32
    assert share_out(crowd, 1) == {0: 1}


def test_the_shortest_come_first_among_the_others() -> None:
    assert share_out([answer(0, 100), answer(1, 40), answer(2, 10)], 40) == {0: 20, 2: 10, 1: 10}


def test_nothing_decodes_so_the_whole_batch_is_for_prefills() -> None:
    assert plan_step([answer(0, 1000)], 256, 0, 0).n_prefill == 256


def test_a_follower_waits_for_its_leader() -> None:
    leader, follower = answer(0, 30), answer(1, 30, slot=1)
    follower.follows = leader
    assert plan_step([leader, follower], 64, 0, 0).answers == [leader]


def test_suspects_go_on_one_at_a_time_the_oldest_first() -> None:
    answers = [answer(2, 30), answer(1, 30, slot=1), answer(0, 5, 4, slot=2, state=State.DECODE)]
    answers[0].is_suspect = answers[1].is_suspect = True
    assert plan_step(answers, 64, 1, 8).answers == [answers[1]]


def test_admission_is_first_come_first_served_and_never_starves_a_large_one() -> None:
    large, small = answer(1, 50), answer(2, 5)
    assert next_to_admit([large, small], [answer(0, 60)], 100) is None
    assert next_to_admit([large, small], [answer(0, 50)], 100) is large
    assert next_to_admit([large], [], 10) is large
    assert next_to_admit([], [], 10) is None


def test_the_newest_gives_way() -> None:
    answers = [answer(3, 5), answer(7, 5), answer(5, 5)]
    assert newest(answers) is answers[1]
