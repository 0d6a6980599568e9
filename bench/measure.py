"""From answers to figures."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

from bench.dialects import Wanted
from bench.load import Answer, closed_loop, faults
from bench.prompts import Count, prompt
from bench.servers import Running
from bench.stats import percentile

WARM_UP_TOKENS = 8


async def measure(running: Running, requests: Sequence[Wanted], clients: int) -> dict[str, Any]:
    """Let clients work off the requests; figures of a cell, in seconds, milliseconds and bytes as their names say."""
    cpu_before = running.cpu_seconds()
    began = time.monotonic()
    answers = await closed_loop(running, requests, clients)
    wall = time.monotonic() - began
    cpu_after = running.cpu_seconds()
    cpu = None if cpu_before is None or cpu_after is None else cpu_after - cpu_before
    return {
        **summary(answers, wall, cpu),
        "memory": running.memory(),
        "faults": faults(answers, requests, running.dialect.exact),
    }


def summary(answers: Sequence[Answer], wall: float, cpu: float | None) -> dict[str, Any]:
    """Figures of some answers that took `wall` seconds of time and `cpu` seconds of the server's processors."""
    good = [answer for answer in answers if not answer.error]
    tokens = sum(answer.completion_tokens for answer in good)
    return {
        "requests": len(answers),
        "tokens": tokens,
        "wall_s": round(wall, 4),
        "tokens_per_s": round(tokens / wall, 3),
        "requests_per_s": round(len(good) / wall, 3),
        "cpu_s": None if cpu is None else round(cpu, 3),
        "cpu_ms_per_token": None if cpu is None or not tokens else round(cpu / tokens * 1000, 4),
        "ttft_ms": spread([answer.ttft for answer in good if answer.pieces]),
        "latency_ms": spread([answer.seconds for answer in good]),
        "gap_ms": spread([gap for answer in good for gap in answer.gaps]),
        "cached_tokens": sum(answer.cached_tokens or 0 for answer in good),
    }


def spread(seconds: Sequence[float]) -> dict[str, float | None]:
    """Median and 95th percentile in milliseconds, of how many."""
    halves = {f"p{percent}": percentile(seconds, percent) for percent in (50, 95)}
    return {name: None if value is None else round(value * 1000, 3) for name, value in halves.items()} | {
        "count": len(seconds)
    }


def make_requests(
    count: Count, number: int, prompt_tokens: int, max_tokens: int, stream: bool, seed: str
) -> list[Wanted]:
    """Requests with prompts of exactly so many tokens, none beginning like another; the same for the same seed."""
    rng = random.Random(seed)
    return [
        Wanted(prompt(count, prompt_tokens, rng.getrandbits(64)), prompt_tokens, max_tokens, stream)
        for _ in range(number)
    ]


async def warm_up(running: Running, slots: int, count: Count, stream: bool) -> None:
    """Bring a new server to its pace: every slot works once. Raises SystemExit when it answers wrong."""
    requests = make_requests(count, 2 * slots, 16, WARM_UP_TOKENS, stream, "warm-up")
    answers = await closed_loop(running, requests, slots)
    if wrong := faults(answers, requests, running.dialect.exact):
        raise SystemExit(f"bench: {running.name} answers wrong: {'; '.join(wrong)[:1000]}")
    await asyncio.sleep(0.2)
