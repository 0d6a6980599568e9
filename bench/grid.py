"""The grid: clients by prompt length, streaming and not, on each model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from bench.measure import make_requests, measure, warm_up
from bench.prompts import Count
from bench.results import Results
from bench.servers import Running, Server, Settings, started

MAX_TOKENS = {16: 64, 100: 64, 1000: 32}  # of the answers, by the prompt's length


@dataclass(frozen=True)
class Cell:
    """One column of a table. `requests`: how many are sent in it."""

    prompt_tokens: int
    clients: int
    stream: bool
    requests: int

    @property
    def max_tokens(self) -> int:
        """Tokens of each answer."""
        return MAX_TOKENS.get(self.prompt_tokens, 64)


def cells(clients: Sequence[int], prompts: Sequence[int], streams: Sequence[bool], share: float) -> list[list[Cell]]:
    """The cells in groups that one start of a server serves. `share`: of the requests that a full session sends."""
    return [
        [Cell(prompt, number, stream, requests(prompt, number, share)) for stream in streams]
        for prompt in prompts
        for number in clients
    ]


def requests(prompt_tokens: int, clients: int, share: float) -> int:
    """Each client sends two requests, but long prompts take long: there it sends one; some are sent in any case."""
    wanted = max(clients, 3) if prompt_tokens >= 1000 else max(2 * clients, 8)
    return max(clients, round(wanted * share))


async def run_group(
    server: Server,
    settings: Settings,
    group: Sequence[Cell],
    model: str,
    number: int,
    count: Count,
    results: Results,
    part: str = "grid",
) -> None:
    """Start the server, warm it up, and run the cells of a group in round `number`."""
    async with started(server, settings) as running:
        await warm_up(running, settings.slots, count, stream=group[0].stream)
        await run_cells(running, group, model, number, count, results, part)


async def run_cells(
    running: Running, group: Sequence[Cell], model: str, number: int, count: Count, results: Results, part: str
) -> None:
    """Run cells one after another on a server that runs; every server gets the same prompts in the same round."""
    for cell in group:
        seed = f"{cell.prompt_tokens}/{cell.clients}/{cell.stream}/{number}"
        asked = make_requests(count, cell.requests, cell.prompt_tokens, cell.max_tokens, cell.stream, seed)
        figures = await measure(running, asked, cell.clients)
        key = {"part": part, "model": model, "server": running.name, "round": number}
        where = {"prompt_tokens": cell.prompt_tokens, "clients": cell.clients, "stream": cell.stream}
        results.add({**key, **where, **figures})
        say(f"{part} {model} {running.name} round {number}: prompt {cell.prompt_tokens}, clients {cell.clients}, ")
        say(f"{'stream' if cell.stream else 'whole'}: {figures['tokens_per_s']:.1f} tokens/s, ")
        say(f"TTFT {figures['ttft_ms']}, {figures['wall_s']:.1f} s {figures['faults'] or ''}\n")


def say(text: str) -> None:
    """Progress, for whoever waits."""
    print(text, end="", file=sys.stderr, flush=True)
