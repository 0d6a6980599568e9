"""Sequences in one llama.cpp context: steps, what slots hold, saved states, and the guards before native calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import llamacpp_backend.engine.runner as seam
import numpy as np
import pytest
from llamacpp_backend.engine.runner import Chunk, NoRoom, StepFailed
from llamacpp_backend.errors import EngineFailure, LoadError
from llamacpp_backend.parameters import parse_sampling

from tests.engine.near_ties import SAME_CHUNKS

if TYPE_CHECKING:
    from llamacpp_backend.llama.model import Model
    from llamacpp_backend.llama.runner import LlamaRunner

OpenRunner = Callable[..., "LlamaRunner"]
Models = dict[str, "Model"]

GREEDY = parse_sampling({"temperature": 0.0}, {}, 256)
KINDS = ["dense", "hybrid"]


def prompt(model: Model, seed: int, length: int) -> list[int]:
    """Tokens of text, none of them a control token."""
    random = Random(seed)
    return random.choices([token for token in range(model.n_vocab) if token not in model.control_tokens], k=length)


def logits(runner: LlamaRunner, slot: int) -> np.ndarray[Any, Any]:
    """The slot's logits of the last step, as a copy."""
    from llamacpp_backend.llama.calls import brief

    address = brief.llama_get_logits_ith(runner._context, runner._rows[slot])
    return runner._view(address).copy()


def feed(runner: LlamaRunner, slot: int, tokens: Sequence[int], position: int = 0) -> None:
    runner.decode([Chunk(slot, tokens, position, True)])


def go_on(runner: LlamaRunner, slot: int, held: int, count: int) -> tuple[list[int], list[bytes]]:
    """Greedy tokens of a slot that has just been fed, and the logits that they were chosen from."""
    tokens, seen = [], []
    with closing(runner.sampler(GREEDY, [1])) as sampler:
        for number in range(count):
            seen.append(logits(runner, slot).tobytes())
            tokens.append(runner.sample(slot, sampler, False).token)
            feed(runner, slot, [tokens[-1]], held + number)
    return tokens, seen


def last_positions(runner: LlamaRunner) -> list[int]:
    """What llama.cpp itself says of each slot: its last position, -1 when empty."""
    import llama_cpp

    return [llama_cpp.llama_memory_seq_pos_max(runner._memory, slot) for slot in range(runner.n_slots)]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["apart", "unified"])
def unified(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def runner(open_runner: OpenRunner, kind: str, unified: bool) -> LlamaRunner:
    return open_runner(kind, kv_unified=unified)


@pytest.fixture
def words(llama: Models, kind: str) -> list[int]:
    return prompt(llama[kind], 1, 40)


def test_implements_the_seam(open_runner: OpenRunner) -> None:
    runner: seam.Runner = open_runner("demo", n_ctx=100, n_slots=3)
    assert (runner.n_slots, runner.n_ctx, runner.n_cells, runner.n_batch) == (3, 100, 300, 256)
    assert runner.can_rewind
    assert not open_runner("hybrid").can_rewind


def test_sizes_of_a_shared_pool(open_runner: OpenRunner) -> None:
    assert open_runner("demo", kv_unified=True).n_cells == 8 * 256
    assert open_runner("demo", kv_unified=True, n_cells=512).n_cells == 512


def test_positions_follow_what_was_fed(runner: LlamaRunner, llama: Models, kind: str) -> None:
    """Random steps: after each, llama.cpp holds exactly as many tokens of each slot as were fed."""
    random = Random(7)
    fed = [0] * runner.n_slots
    for _ in range(60):
        slots = sorted(random.sample(range(runner.n_slots), random.randint(1, runner.n_slots)))
        chunks = []
        for slot in slots:
            if random.random() < 0.2:
                runner.clear(slot)
                fed[slot] = 0
            count = min(random.choice([1, 1, 1, 5, 17]), runner.n_ctx - fed[slot])
            if count:
                chunks.append(Chunk(slot, prompt(llama[kind], random.randrange(99), count), fed[slot], count % 2 == 1))
                fed[slot] += count
        runner.decode(chunks)
        assert last_positions(runner) == [count - 1 for count in fed]


def test_steps_of_one_token_each_go_to_their_own_slots(runner: LlamaRunner) -> None:
    """As many rows as in the step before, but of other slots."""
    fed = [0] * runner.n_slots
    for slots in [(0,), (1,), (1,), (0, 1), (2, 3), (0, 3), (0, 3), (0, 1, 2, 3, 4, 5, 6, 7), (7,)]:
        runner.decode([Chunk(slot, [5 + slot], fed[slot], True) for slot in slots])
        for slot in slots:
            fed[slot] += 1
        assert last_positions(runner) == [count - 1 for count in fed]


def test_same_steps_give_the_same_bits(open_runner: OpenRunner, llama: Models, kind: str) -> None:
    text = prompt(llama[kind], 3, 30)
    results = []
    for _ in range(2):
        runner = open_runner(kind)
        feed(runner, 0, text)
        results.append(go_on(runner, 0, len(text), 20))
    assert results[0] == results[1]


def test_eight_slots_equal_each_alone(open_runner: OpenRunner, llama: Models, kind: str) -> None:
    """f16 weights, caches apart: a batch changes no token, but where the two best are nearly equal."""
    texts = [prompt(llama[kind], seed, 10 + 7 * seed) for seed in range(8)]
    alone = []
    for text in texts:
        runner = open_runner(kind)
        feed(runner, 0, text)
        alone.append(go_on(runner, 0, len(text), 40))
        runner.close()
    runner = open_runner(kind)
    runner.decode([Chunk(slot, text, 0, True) for slot, text in enumerate(texts[:4])])
    for slot in range(4, 8):  # the others come one by one, each beside those that go on
        feed(runner, slot, texts[slot])
    runner.decode([Chunk(slot, [alone[slot][0][0]], len(texts[slot]), True) for slot in range(8)])
    samplers = [runner.sampler(GREEDY, [1]) for _ in range(8)]
    running = set(range(8))
    for step in range(1, 40):
        chunks = []
        for slot in sorted(running):
            token = runner.sample(slot, samplers[slot], False).token
            expected, before = alone[slot]
            if token != expected[step]:
                best, second = np.sort(np.frombuffer(before[step], np.float32))[:-3:-1]
                assert best - second < SAME_CHUNKS, f"slot {slot}, step {step}"
                running.remove(slot)  # from here on it is another text
                continue
            chunks.append(Chunk(slot, [token], len(texts[slot]) + step, True))
        runner.decode(chunks)
    for sampler in samplers:
        sampler.close()
    assert len(running) >= 6


def test_neighbours_change_no_bit_of_a_lone_row(open_runner: OpenRunner, llama: Models, kind: str) -> None:
    """Caches apart: slots that hold something, but take no part in a step, do not matter."""
    text = prompt(llama[kind], 3, 30)
    quiet, busy = open_runner(kind), open_runner(kind)
    busy.decode([Chunk(slot, prompt(llama[kind], slot, 20), 0, False) for slot in (0, 2, 7)])
    feed(quiet, 1, text)
    feed(busy, 1, text)
    assert go_on(quiet, 1, 30, 10) == go_on(busy, 1, 30, 10)


def test_restore_goes_on_as_before(runner: LlamaRunner, words: list[int]) -> None:
    feed(runner, 0, words[:25])
    state = runner.save(0)
    assert runner.state_bytes(0) == len(state)
    feed(runner, 0, words[25:], 25)
    expected = go_on(runner, 0, 40, 15)
    runner.clear(0)
    for slot in (0, 5):
        assert runner.restore(slot, state, 25)
        assert last_positions(runner)[slot] == 24
        feed(runner, slot, words[25:], 25)
        assert go_on(runner, slot, 40, 15) == expected
        runner.clear(slot)


def test_restore_replaces_what_the_slot_held(runner: LlamaRunner, words: list[int]) -> None:
    feed(runner, 0, words[:25])
    state = runner.save(0)
    feed(runner, 0, words[25:], 25)
    expected = go_on(runner, 0, 40, 5)
    assert runner.restore(0, state, 25)
    feed(runner, 0, words[25:], 25)
    assert go_on(runner, 0, 40, 5) == expected


def test_copy_goes_on_as_the_original(runner: LlamaRunner, words: list[int]) -> None:
    feed(runner, 0, words[:25])
    feed(runner, 3, words)  # to be replaced
    runner.copy(0, 3)
    assert last_positions(runner)[3] == 24
    feed(runner, 0, words[30:], 25)  # the original goes its own way before the copy does anything
    runner.clear(0)
    feed(runner, 3, words[25:], 25)
    copied = go_on(runner, 3, 40, 15)
    runner.clear(3)
    feed(runner, 0, words[:25])
    feed(runner, 0, words[25:], 25)
    assert go_on(runner, 0, 40, 15) == copied


def test_copy_can_be_saved_and_the_original_restored_before_the_next_step(
    runner: LlamaRunner, words: list[int]
) -> None:
    feed(runner, 0, words[:25])
    state = runner.save(0)
    feed(runner, 1, words[30:])
    other = runner.save(1)
    runner.copy(0, 3)
    copied = runner.save(3)
    assert runner.restore(0, other, 10)
    runner.clear(0)
    runner.clear(1)
    feed(runner, 3, words[25:], 25)
    expected = go_on(runner, 3, 40, 10)
    for slot, saved in ((4, copied), (5, state)):
        runner.clear(3)
        assert runner.restore(slot, saved, 25)
        feed(runner, slot, words[25:], 25)
        assert go_on(runner, slot, 40, 10) == expected
        runner.clear(slot)


def test_copy_of_an_empty_slot_empties(runner: LlamaRunner, words: list[int]) -> None:
    feed(runner, 3, words)
    runner.copy(0, 3)
    assert last_positions(runner)[3] == -1
    with pytest.raises(EngineFailure, match="slot 2 can't be copied onto itself"):
        runner.copy(2, 2)


@pytest.mark.parametrize("kind", ["dense"])
def test_rewind(runner: LlamaRunner, words: list[int]) -> None:
    feed(runner, 0, words[:25])
    feed(runner, 0, words[25:], 25)
    expected = go_on(runner, 0, 40, 10)
    for _ in range(2):
        runner.rewind(0, 25)
        assert last_positions(runner)[0] == 24
        feed(runner, 0, words[25:], 25)
        assert go_on(runner, 0, 40, 10) == expected
    runner.rewind(0, 50)
    runner.rewind(0, 0)
    assert last_positions(runner)[0] == -1
    assert runner.save_checkpoint(0) == b""


@pytest.mark.parametrize("kind", ["hybrid"])
def test_rollback(runner: LlamaRunner, words: list[int]) -> None:
    feed(runner, 0, words[:12])
    early = runner.save_checkpoint(0)
    feed(runner, 0, words[12:25], 12)
    late = runner.save_checkpoint(0)
    assert len(late) < len(runner.save(0))
    feed(runner, 0, words[25:], 25)
    expected = go_on(runner, 0, 40, 10)
    for checkpoint, length in ((late, 25), (late, 25), (early, 12), (early, 12)):
        assert runner.rollback(0, checkpoint, length)
        assert last_positions(runner)[0] == length - 1
        if length == 12:
            feed(runner, 0, words[12:25], 12)
        feed(runner, 0, words[25:], 25)
        assert go_on(runner, 0, 40, 10) == expected


@pytest.mark.parametrize("kind", ["hybrid"])
def test_restore_then_rollback_in_another_slot(runner: LlamaRunner, words: list[int]) -> None:
    feed(runner, 0, words[:25])
    checkpoint = runner.save_checkpoint(0)
    feed(runner, 0, words[25:], 25)
    state = runner.save(0)
    expected = go_on(runner, 0, 40, 10)
    runner.clear(0)
    assert runner.restore(6, state, 40)
    assert runner.rollback(6, checkpoint, 25)
    feed(runner, 6, words[25:], 25)
    assert go_on(runner, 6, 40, 10) == expected


@pytest.mark.parametrize("kind", ["hybrid"])
def test_checkpoint_of_another_length_is_refused(runner: LlamaRunner, words: list[int]) -> None:
    feed(runner, 0, words[:25])
    checkpoint = runner.save_checkpoint(0)
    for length in (20, 30):
        feed(runner, 1, words)
        assert not runner.rollback(1, checkpoint, length)
        assert last_positions(runner)[1] == -1


def test_blobs_that_do_not_fit_leave_an_empty_slot(
    open_runner: OpenRunner, runner: LlamaRunner, words: list[int], unified: bool
) -> None:
    feed(runner, 0, words[:25])
    state = runner.save(0)
    other = open_runner("dense" if runner.can_rewind else "hybrid", kv_unified=not unified)
    feed(other, 0, words[:25])
    garbled = bytes(byte ^ 0x5A for byte in state[:64]) + state[64:]
    blobs = [b"", b"x", state[:-1], state[: len(state) // 2], state[:8], garbled, bytes(len(state)), other.save(0)]
    for blob in blobs:
        feed(runner, 2, words)
        assert not runner.restore(2, blob, 25)
        assert last_positions(runner)[2] == -1
    for length in (24, 26, 0, -1, 257):
        assert not runner.restore(2, state, length)
        assert last_positions(runner)[2] == -1
    assert runner.restore(2, state, 25)


def test_state_of_another_cache_type_is_refused(open_runner: OpenRunner, llama: Models, kind: str) -> None:
    states = []
    runners = [open_runner(kind, cache_type_k=name, cache_type_v=name) for name in ("f16", "q8_0")]
    for runner in runners:
        feed(runner, 0, prompt(llama[kind], 1, 20))
        states.append(runner.save(0))
    assert not runners[0].restore(1, states[1], 20)
    assert not runners[1].restore(1, states[0], 20)


@pytest.mark.parametrize("name", ["f32", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"])
def test_cache_types(open_runner: OpenRunner, llama: Models, name: str) -> None:
    runner = open_runner("demo", cache_type_k=name, cache_type_v=name, flash_attention="on")
    runner.warm_up()
    text = llama["demo"].tokenize("What is ", add_special=True, parse_special=False)
    feed(runner, 0, text)
    assert len(go_on(runner, 0, len(text), 4)[0]) == 4


@pytest.mark.parametrize("flash", ["on", "off", "auto"])
def test_flash_attention(open_runner: OpenRunner, llama: Models, flash: str) -> None:
    runner = open_runner("dense", flash_attention=flash, n_ubatch=16)
    feed(runner, 0, prompt(llama["dense"], 1, 40))
    assert math.isfinite(float(logits(runner, 0).max()))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_slots": 0}, "n_slots is 0; allowed is an integer from 1 to 256"),
        ({"n_slots": 257}, "n_slots is 257; allowed is an integer from 1 to 256"),
        ({"n_ctx": 0}, "n_ctx is 0; allowed is an integer from 1 to"),
        ({"n_batch": 0}, "n_batch is 0; allowed"),
        ({"n_ubatch": 0}, "n_ubatch is 0; allowed"),
        ({"n_threads": 0}, "n_threads is 0; allowed"),
        ({"n_ctx": 2**30}, "n_ctx 1073741824 in 8 slots is too much"),
        ({"kv_unified": True, "n_cells": 255}, r"n_cells is 255; allowed is n_ctx \(256\) or more"),
        ({"cache_type_k": "q2_k"}, "cache_type_k is 'q2_k'; allowed are f32, f16"),
        ({"cache_type_v": ""}, "cache_type_v is ''; allowed are f32, f16"),
        ({"flash_attention": "maybe"}, "flash_attention is 'maybe'; allowed are auto, off, on"),
        ({"cache_type_v": "q8_0", "flash_attention": "off"}, "cache_type_v q8_0 needs flash_attention; it is off"),
    ],
)
def test_options_that_are_refused(open_runner: OpenRunner, options: dict[str, Any], words: str) -> None:
    with pytest.raises(LoadError, match=words):
        open_runner("demo", **options)


def test_each_slot_gets_a_row_in_the_smallest_batch(open_runner: OpenRunner) -> None:
    runner = open_runner("demo", n_ctx=16, n_batch=1, n_ubatch=1, n_slots=8)
    assert runner.n_batch >= 8
    runner.decode([Chunk(slot, [5], 0, True) for slot in range(8)])
    assert last_positions(runner) == [0] * 8


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([], "a step has 0 tokens; allowed are 1 to 64"),
        ([(0, [], 0)], "the chunk of slot 0 has no tokens"),
        ([(0, [1] * 65, 0)], "a step has 65 tokens; allowed are 1 to 64"),
        ([(0, [1] * 33, 0), (1, [1] * 32, 0)], "a step has 65 tokens; allowed are 1 to 64"),
        ([(0, [1], 1)], "tokens 1 to 2 do not follow the 0 of slot 0 in 256"),
        ([(0, [1], -1)], "tokens -1 to 0 do not follow the 0 of slot 0 in 256"),
        ([(1, [1], 0), (0, [1], 0)], "slot 0 follows slot 1; allowed are ascending slots below 8"),
        ([(1, [1], 0), (1, [1], 1)], "slot 1 follows slot 1"),
        ([(8, [1], 0)], "slot 8 follows slot -1; allowed are ascending slots below 8"),
        ([(-1, [1], 0)], "slot -1 follows slot -1"),
        ([(0, [-1], 0)], "token -1 is not in the vocabulary"),
        ([(0, [1, 2, 10**6], 0)], "token 1000000 is not in the vocabulary"),
        ([(0, [2**31], 0)], "token 2147483648 is not in the vocabulary"),
        ([(0, [1], 0), (3, [1, -5], 0)], "token -5 is not in the vocabulary"),
    ],
)
def test_decode_refuses(
    open_runner: OpenRunner, kind: str, chunks: list[tuple[int, list[int], int]], words: str
) -> None:
    runner = open_runner(kind, n_batch=64)
    feed(runner, 5, [1, 2])
    with pytest.raises(EngineFailure, match=words) as refused:
        runner.decode([Chunk(slot, tokens, position, True) for slot, tokens, position in chunks])
    assert not isinstance(refused.value, StepFailed)
    assert last_positions(runner) == [1 if slot == 5 else -1 for slot in range(8)]
    feed(runner, 5, [3], 2)


def test_decode_refuses_more_than_a_slot_may_hold(open_runner: OpenRunner, kind: str) -> None:
    runner = open_runner(kind, n_ctx=100)  # llama.cpp rounds up and would take them
    feed(runner, 1, [1] * 100)
    with pytest.raises(EngineFailure, match="tokens 100 to 101 do not follow the 100 of slot 1 in 100"):
        feed(runner, 1, [1], 100)


def test_a_full_pool_changes_nothing(open_runner: OpenRunner, llama: Models, kind: str) -> None:
    runner = open_runner(kind, kv_unified=True, n_cells=256)
    texts = [prompt(llama[kind], seed, 120) for seed in range(3)]
    feed(runner, 0, texts[0])
    feed(runner, 1, texts[1])
    first = logits(runner, 1)
    with pytest.raises(NoRoom, match="no room for a step of 41 tokens"):
        runner.decode([Chunk(0, [5], 120, True), Chunk(2, texts[2][:40], 0, True)])
    with pytest.raises(EngineFailure, match="slot 1 has nothing to sample from"):
        runner.sample(1, runner.sampler(GREEDY, [1]), False)
    assert last_positions(runner)[:3] == [119, 119, -1]
    feed(runner, 0, [5], 120)  # the others go on at once
    runner.clear(0)
    feed(runner, 2, texts[2][:40])  # and this one when there is room
    runner.clear(1)
    feed(runner, 1, texts[1])
    assert np.abs(logits(runner, 1) - first).max() < 1


@pytest.fixture
def failing(runner: LlamaRunner, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Lets llama_decode answer `code` in place of decoding."""
    import llama_cpp

    state = SimpleNamespace(code=None)
    real = llama_cpp.llama_decode
    monkeypatch.setattr(llama_cpp, "llama_decode", lambda *given: real(*given) if state.code is None else state.code)
    return state


@pytest.mark.parametrize("code", [2, -1, -2, -3])
def test_failed_step_leaves_its_slots_undefined(
    runner: LlamaRunner, words: list[int], failing: SimpleNamespace, code: int
) -> None:
    feed(runner, 0, words)
    feed(runner, 1, words)
    feed(runner, 2, words)
    state = runner.save(2)
    failing.code = code
    with pytest.raises(StepFailed, match=rf"could not decode 2 tokens \(code {code}\)"):
        runner.decode([Chunk(0, [1], 40, True), Chunk(1, [1], 40, True)])
    failing.code = None
    refused: list[Callable[[], Any]] = [
        lambda: feed(runner, 0, [1], 40),
        lambda: feed(runner, 0, [1], 41),
        lambda: feed(runner, 0, [1], -1),
        lambda: runner.save(0),
        lambda: runner.save_checkpoint(0),
        lambda: runner.copy(0, 3),
        lambda: runner.rewind(0, 10),
        lambda: runner.rollback(0, state, 10),
        lambda: runner.sample(0, runner.sampler(GREEDY, [1]), False),
    ]
    for call in refused:
        with pytest.raises(EngineFailure):
            call()
    feed(runner, 2, [1], 40)  # it took no part
    assert runner.restore(0, state, 40)
    runner.clear(1)
    feed(runner, 0, [1], 40)
    feed(runner, 1, words)


def test_sampling_needs_logits(runner: LlamaRunner, words: list[int]) -> None:
    sampler = runner.sampler(GREEDY, [1])

    def refused(slot: int) -> None:
        with pytest.raises(EngineFailure, match=f"slot {slot} has nothing to sample from"):
            runner.sample(slot, sampler, False)

    refused(0)
    runner.decode([Chunk(0, words, 0, False), Chunk(1, words, 0, True)])
    refused(0)
    assert runner.sample(1, sampler, False) == runner.sample(1, sampler, False)
    feed(runner, 0, words[:1], 40)
    refused(1)  # its logits were those of the step before
    runner.clear(0)
    refused(0)
    refused(8)
    refused(-1)
    feed(runner, 0, words)
    with pytest.raises(EngineFailure, match="a sampler of SimpleNamespace does not fit"):
        runner.sample(0, SimpleNamespace(), False)


def test_rows_of_logits_are_those_of_the_slots(open_runner: OpenRunner, llama: Models, kind: str) -> None:
    """A step of mixed chunks: each slot's logits are what the slot gives alone."""
    texts = {slot: prompt(llama[kind], slot, count) for slot, count in ((0, 1), (2, 9), (3, 1), (4, 30), (7, 2))}
    runner = open_runner(kind)
    runner.decode([Chunk(slot, text, 0, slot != 3) for slot, text in texts.items()])
    mixed = {slot: logits(runner, slot) for slot in texts if slot != 3}
    for slot, expected in mixed.items():
        lone = open_runner(kind)
        feed(lone, slot, texts[slot])
        assert np.abs(logits(lone, slot) - expected).max() < 0.05
        lone.close()


@pytest.mark.parametrize("slot", [-1, 8, 10**6])
def test_slots_that_do_not_exist(runner: LlamaRunner, slot: int) -> None:
    feed(runner, 0, [1, 2])
    state = runner.save(0)
    refused: list[Callable[[], Any]] = [
        lambda: runner.clear(slot),
        lambda: runner.copy(slot, 0),
        lambda: runner.copy(0, slot),
        lambda: runner.save(slot),
        lambda: runner.save_checkpoint(slot),
        lambda: runner.restore(slot, state, 2),
        lambda: runner.rewind(slot, 0),
        lambda: runner.rollback(slot, state, 1),
    ]
    for call in refused:
        with pytest.raises(EngineFailure, match=f"there is no slot {slot}; allowed are 0 to 7"):
            call()


def test_going_back_further_than_the_slot_holds(runner: LlamaRunner, words: list[int]) -> None:
    feed(runner, 0, words)
    checkpoint = runner.save_checkpoint(0)
    for length in (-1, 41):
        with pytest.raises(EngineFailure):
            runner.rewind(0, length)
        with pytest.raises(EngineFailure):
            runner.rollback(0, checkpoint, length)
    assert last_positions(runner)[0] == 39


def test_hybrids_do_not_rewind_and_dense_ones_do_not_roll_back(open_runner: OpenRunner) -> None:
    for name, call in (("hybrid", "rewind"), ("dense", "rollback")):
        runner = open_runner(name)
        feed(runner, 0, [1] * 8)
        with pytest.raises(EngineFailure, match="slot 0 can't be "):
            getattr(runner, call)(0, *([b"x"] if call == "rollback" else []), 4)
        assert last_positions(runner)[0] == 7


def test_warm_up_leaves_nothing(runner: LlamaRunner) -> None:
    runner.warm_up()
    assert last_positions(runner) == [-1] * 8
    feed(runner, 3, [1])


def test_closed_context_is_refused(open_runner: OpenRunner, kind: str) -> None:
    runner = open_runner(kind)
    feed(runner, 0, [1, 2])
    state = runner.save(0)
    sampler = runner.sampler(GREEDY, [1])
    runner.close()
    runner.close()  # again, and nothing is freed twice
    refused: list[Callable[[], Any]] = [
        lambda: feed(runner, 0, [1], 2),
        lambda: runner.sample(0, sampler, False),
        lambda: runner.sampler(GREEDY, [1]),
        lambda: runner.clear(0),
        lambda: runner.save(0),
        lambda: runner.restore(0, state, 2),
        lambda: runner.copy(0, 1),
        runner.warm_up,
    ]
    for call in refused:
        with pytest.raises(EngineFailure):
            call()
    sampler.close()


def test_memory_does_not_grow(open_runner: OpenRunner, llama: Models, kind: str) -> None:
    """Slots, samplers and states come and go; what is resident stays."""
    runner = open_runner(kind)
    hot = parse_sampling({"repetition_penalty": 1.1, "dry_multiplier": 0.5, "grammar": "root ::= [^\\x00]*"}, {}, 256)
    text = prompt(llama[kind], 1, 30)

    def resident() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096

    def rounds(count: int) -> None:
        for number in range(count):
            slot = number % 8
            runner.clear(slot)
            feed(runner, slot, text)
            with closing(runner.sampler(hot, text)) as sampler:
                runner.sample(slot, sampler, False)
            runner.restore((slot + 1) % 8, runner.save(slot), 30)

    rounds(100)
    before = resident()
    rounds(600)
    assert resident() - before < 2 * 2**20
