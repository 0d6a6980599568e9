"""What the grid can't show: shared prefixes, the pace of running streams, the ceiling, short requests, memory."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bench.cache import REPOSITORY
from bench.dialects import Wanted
from bench.grid import say
from bench.load import Answer, ask, faults
from bench.measure import make_requests, measure, spread, warm_up
from bench.prompts import Count, prompt, words
from bench.results import Results
from bench.servers import Running, Server, Settings, started

PREFIX_TOKENS = 1000
INTRUDER_TOKENS = 1000


async def shared_prefix(
    server: Server, settings: Settings, model: str, number: int, count: Count, results: Results, repeats: int
) -> None:
    """TTFT of a first request with a prefix of 1,000 tokens, and of a second one with another ending.

    Once with the prefix as the beginning of a raw prompt, once as a chat's system prompt.
    """
    async with started(server, settings) as running:
        await warm_up(running, settings.slots, count, stream=True)
        for route in ("prompt", "chat"):
            pairs = []
            for repeat in range(repeats):
                rng = random.Random(f"prefix/{route}/{number}/{repeat}")
                prefix = prompt(count, PREFIX_TOKENS, rng.getrandbits(64))
                pairs.append([await ask(running, _with_prefix(prefix, words(rng, 8), route)) for _ in range(2)])
            wrong = faults([answer for pair in pairs for answer in pair], [])
            figures = {
                "first_ms": spread([first.ttft for first, _ in pairs if first.pieces]),
                "second_ms": spread([second.ttft for _, second in pairs if second.pieces]),
                "cached_tokens": [second.cached_tokens for _, second in pairs],
            }
            key = {"part": "prefix", "model": model, "server": server.name, "route": route, "round": number}
            results.add({**key, **figures, "faults": wrong})
            say(f"prefix {model} {server.name} {route}: {figures} {wrong or ''}\n")


def _with_prefix(prefix: str, ending: str, route: str) -> Wanted:
    if route == "chat":
        return Wanted(ending, 0, 8, stream=True, system=prefix)
    return Wanted(f"{prefix} {ending}", 0, 8, stream=True)


async def pace(
    server: Server,
    settings: Settings,
    model: str,
    number: int,
    count: Count,
    results: Results,
    streams: int,
    quiet_seconds: float,
    repeats: int,
) -> None:
    """Gaps between the pieces of running streams: while nothing else happens, and while a long prompt is read.

    The second is from sending the prompt until its first piece of text.
    """
    async with started(server, settings) as running:
        await warm_up(running, settings.slots, count, stream=True)
        followed: list[Answer] = []
        tasks = [asyncio.create_task(_endless(running, settings, count, followed, f"{n}")) for n in range(streams)]
        try:
            await _all_speak(followed, streams)
            quiet, disturbed, intruders = [], [], []
            for repeat in range(repeats):
                began = time.monotonic()
                await asyncio.sleep(quiet_seconds)
                quiet += _gaps(followed, began, time.monotonic())
                seed = f"intruder/{number}/{repeat}"
                (wanted,) = make_requests(count, 1, INTRUDER_TOKENS, 1, True, seed)
                intruder = await ask(running, wanted)
                intruders.append(intruder)
                disturbed += _gaps(followed, intruder.started, intruder.ended)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        wrong = faults(intruders, [])
        figures = {
            "streams": streams,
            "quiet_ms": spread(quiet),
            "disturbed_ms": spread(disturbed),
            "longest_ms": round(max(disturbed, default=0.0) * 1000, 1),
            "ttft_ms": spread([one.ttft for one in intruders if one.pieces]),
        }
        key = {"part": "pace", "model": model, "server": server.name, "round": number}
        results.add({**key, **figures, "faults": wrong})
        say(f"pace {model} {server.name}: {figures} {wrong or ''}\n")


async def _endless(running: Running, settings: Settings, count: Count, followed: list[Answer], seed: str) -> None:
    """A client whose stream never ends for long; each answer can be watched in `followed`."""
    longest = settings.n_ctx - 16
    number = 0
    while True:
        (wanted,) = make_requests(count, 1, 16, longest, True, f"endless/{seed}/{number}")
        answer = Answer(time.monotonic())
        followed.append(answer)
        await ask(running, wanted, answer)
        if answer.error:
            raise SystemExit(f"bench: {running.name} broke a stream off: {answer.error}")
        number += 1


async def _all_speak(followed: Sequence[Answer], streams: int) -> None:
    """Wait until every stream has begun. Raises TimeoutError after two minutes."""
    async with asyncio.timeout(120):
        while sum(bool(answer.pieces) for answer in followed) < streams:
            await asyncio.sleep(0.05)


def _gaps(answers: Sequence[Answer], began: float, ended: float) -> list[float]:
    """The gaps that ended in a span of time; one that began before it counts whole, as its reader has waited."""
    return [
        after - before
        for answer in answers
        for before, after in zip(answer.pieces, answer.pieces[1:], strict=False)
        if began <= after <= ended
    ]


async def steady_decode(
    server: Server,
    settings: Settings,
    model: str,
    number: int,
    count: Count,
    results: Results,
    clients: int,
    steps: int,
) -> None:
    """Tokens per second while all clients' streams run at once, to be held against the ceiling."""
    async with started(server, settings) as running:
        await warm_up(running, settings.slots, count, stream=True)
        asked = make_requests(count, clients, 16, steps, True, f"steady/{clients}/{number}")
        answers = await asyncio.gather(*(ask(running, wanted) for wanted in asked))
    wrong = faults(answers, asked)
    began = max((answer.pieces[0] for answer in answers if answer.pieces), default=0.0)
    ended = min((answer.pieces[-1] for answer in answers if answer.pieces), default=0.0)
    inside = sum(began < at <= ended for answer in answers for at in answer.pieces)
    rate = round(inside / (ended - began), 3) if ended > began else None
    key = {"part": "ceiling", "model": model, "server": server.name, "clients": clients, "round": number}
    results.add({**key, "tokens_per_s": rate, "tokens": inside, "faults": wrong})
    say(f"ceiling {model} {server.name} {clients} clients: {rate} tokens/s {wrong or ''}\n")


def raw_ceiling(settings: Settings, model: str, number: int, results: Results, clients: int, steps: int) -> None:
    """The same batch by llama_decode alone, in a process of its own."""
    options: dict[str, Any] = {
        "--gguf": settings.gguf,
        "--rows": clients,
        "--slots": settings.slots,
        "--n-ctx": settings.n_ctx,
        "--threads": settings.threads,
        "--prompt": 16,
        "--steps": steps,
    }
    command = [sys.executable, "-m", "bench.ceiling", *(str(word) for option in options.items() for word in option)]
    figures = json.loads(subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout)
    key = {"part": "ceiling", "model": model, "server": "llama_decode", "clients": clients, "round": number}
    results.add({**key, **{name: round(value, 3) for name, value in figures.items()}})
    say(f"ceiling {model} llama_decode {clients} rows: {figures['tokens_per_s']:.2f} tokens/s\n")


async def short_requests(
    server: Server,
    settings: Settings,
    model: str,
    number: int,
    count: Count,
    results: Results,
    route: str,
    clients: int,
    requests: int,
) -> None:
    """Requests per second of one token each."""
    async with started(server, settings) as running:
        await warm_up(running, settings.slots, count, stream=False)
        figures = await measure(running, make_requests(count, requests, 16, 1, False, f"short/{number}"), clients)
        key = {"part": "short", "model": model, "server": server.name, "route": route, "clients": clients}
        results.add({**key, "round": number, **figures})
        say(f"short {model} {server.name} {route} {clients} clients: {figures['requests_per_s']} requests/s ")
        say(f"{figures['latency_ms']} {figures['faults'] or ''}\n")


async def memory(
    server: Server, settings: Settings, model: str, count: Count, results: Results, phases: int, requests: int
) -> None:
    """Resident memory after the warm-up, and after each of some phases of mixed load."""
    async with started(server, settings) as running:
        await warm_up(running, settings.slots, count, stream=True)
        readings = [running.memory()]
        wrong: list[str] = []
        for phase in range(phases):
            asked = make_requests(count, requests, 100, 16, True, f"memory/{phase}")
            mixed = [replace(wanted, stream=bool(index % 2)) for index, wanted in enumerate(asked)]
            wrong += (await measure(running, mixed, 2 * settings.slots))["faults"]
            await asyncio.sleep(1)  # what goes when its request is done has gone
            readings.append(running.memory())
        key = {"part": "memory", "model": model, "server": server.name}
        results.add({**key, "requests": requests, "readings": readings, "faults": sorted(set(wrong))})
        mib = [{part: size >> 20 for part, size in reading.items()} for reading in readings]
        say(f"memory {model} {server.name}: {mib} MiB {wrong or ''}\n")
