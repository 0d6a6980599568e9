"""Answers made together are the answers made alone: no token of one ever reaches another, whatever comes and goes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from llamacpp_backend.errors import Cancelled

from tests.engine.asking import ANSWERS, Answer, Asked, Asker
from tests.engine.near_ties import OTHER_CHUNKS, SAME_CHUNKS

OpenAsker = Callable[..., Asker]

ROUNDS = 20
AT_ONCE = 16


@pytest.mark.parametrize("kv_unified", [False, True])
def test_sixteen_at_once_over_eight_slots(open_asker: OpenAsker, kv_unified: bool) -> None:
    asker = open_asker("demo", kv_unified=kv_unified)
    order = random.Random(3)
    wrong = []
    for _ in range(ROUNDS):
        asked: list[tuple[dict[str, Any], Asked, bool]] = []
        for known in order.sample(ANSWERS, AT_ONCE):
            leaves = order.random() < 0.25
            is_chat = order.random() < 0.5
            text = json.dumps([{"role": "user", "content": known["question"]}]) if is_chat else known["question"]
            asked.append((known, asker.begin(text, is_chat=is_chat, max_tokens=600), leaves))
        for _, request, leaves in asked:
            if leaves:
                request.wait_for_pieces(order.randrange(3))
                request.leave()
        for known, request, leaves in asked:
            try:
                text = request.wait().text
            except Cancelled:
                assert leaves
                continue
            if text != known["answer"]:
                wrong.append((known["id"], text))
    assert wrong == []
    snapshot = asker.engine.snapshot()
    assert (snapshot.running, snapshot.waiting, snapshot.free_slots) == (0, 0, 8)


def gaps(answer: Answer) -> list[float]:
    """How much likelier the best token was than the second, at each step."""
    return [token.top[0][2] - token.top[1][2] for token in answer.tokens]


def same_but_for_near_ties(alone: Answer, other: Answer, near_tie: float) -> str | None:
    """None when the answers are alike up to the first near-tie, else what differs."""
    for place, (mine, theirs) in enumerate(zip(alone.tokens, other.tokens, strict=False)):
        if mine.token != theirs.token:
            gap = gaps(alone)[place]
            return None if gap < near_tie else f"token {place}: {theirs.token} for {mine.token}, gap {gap:.4f}"
    return None if len(alone.tokens) == len(other.tokens) else "one is shorter"


def prompts(count: int, seed: int) -> list[str]:
    order = random.Random(seed)
    words = [word for known in ANSWERS for word in known["answer"].split()]
    return [" ".join(order.choices(words, k=order.choice((3, 20, 60)))) for _ in range(count)]


OPTIONS: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True, "stop": [], "logprobs": 2}


@pytest.mark.parametrize(("name", "near_tie"), [("hybrid", SAME_CHUNKS), ("dense", OTHER_CHUNKS)])
def test_random_weights_in_a_batch_and_alone(open_asker: OpenAsker, name: str, near_tie: float) -> None:
    alone_asker, asker = open_asker(name, cache_bytes=0), open_asker(name)
    texts = prompts(24, 11)
    alone = [alone_asker.raw(text, **OPTIONS, cache_prompt=False) for text in texts]
    together = [asker.begin(text, **OPTIONS) for text in texts]
    differences = [same_but_for_near_ties(a, t.wait(), near_tie) for a, t in zip(alone, together, strict=True)]
    assert [difference for difference in differences if difference] == []
    distinct = {tuple(token.token for token in answer.tokens) for answer in alone}
    assert len(distinct) > 12, "the models' answers are too alike to tell one from another"


@pytest.mark.parametrize("name", ["hybrid", "dense", "demo"])
def test_with_the_prompt_cache_as_without(open_asker: OpenAsker, name: str) -> None:
    """Exact prefixes, prefixes that diverge, whole prompts again, from idle slots and from the store."""
    cached, uncached = open_asker(name, checkpoint_every=32), open_asker(name, cache_bytes=0)
    order = random.Random(5)
    (base, *others) = prompts(6, 21)
    base = base + " " + prompts(1, 22)[0]
    texts = [base, base, base + " and more", base[: len(base) // 2] + " another way"]
    texts += [f"{other} {base}" for other in others] + [base + " " + other for other in others] + [base, texts[2]]
    order.shuffle(texts)
    reused = 0
    for text in texts * 2:
        with_cache = cached.raw(text, **OPTIONS)
        without = uncached.raw(text, **OPTIONS, cache_prompt=False)
        assert without.summary.cached_tokens == 0
        reused += with_cache.summary.cached_tokens
        assert same_but_for_near_ties(without, with_cache, OTHER_CHUNKS) is None
    assert reused > 500, "the cache was not used"


@pytest.mark.parametrize("name", ["hybrid", "dense"])
def test_several_answers_share_the_prefill(open_asker: OpenAsker, name: str) -> None:
    asker = open_asker(name)
    prompt = " ".join(prompts(4, 31))
    counted = asker.engine.metrics.step_tokens
    before = counted.total
    answers = asker.begin(prompt, n=4, temperature=1.0, top_k=0, min_p=0.0, max_tokens=8, ignore_eos=True).wait_all()
    (length,) = {answer.summary.prompt_tokens for answer in answers}
    assert len({answer.summary.seed for answer in answers}) == 4
    assert len({answer.text for answer in answers}) > 1
    assert counted.total - before <= length + 4 * 8, "the prompt was computed more than once"


@pytest.mark.parametrize("name", ["hybrid", "dense", "demo"])
def test_second_request_of_a_conversation_computes_only_what_is_new(open_asker: OpenAsker, name: str) -> None:
    asker = open_asker(name)
    system = {"role": "system", "content": " ".join(prompts(3, 41))}
    first = asker.chat([system, {"role": "user", "content": "one"}], max_tokens=4)
    second = asker.chat([system, {"role": "user", "content": "two and more"}], max_tokens=4)
    assert first.summary.cached_tokens == 0
    new = second.summary.prompt_tokens - second.summary.cached_tokens
    assert new < 40, f"{new} of {second.summary.prompt_tokens} tokens were computed again"
