"""Runs the benchmarks: our servers and their peers in turn (A B A B), one at a time, each started afresh.

    python -m bench.run              all of it, for hours; writes bench/results/serving.json and docs/benchmarks.md
    python -m bench.run --short      every part once on a tiny model, to see that it works; writes nothing to the tree
    python -m bench.run --models hybrid --parts grid --prompts 16 --clients 1,8 --keep
                                     some cells again, into what is there

Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import grid, models, parts, report, servers
from bench.cache import REPOSITORY
from bench.native import Tokenizer
from bench.prompts import Count
from bench.results import Results, conditions

RESULTS = REPOSITORY / "bench" / "results" / "serving.json"
PARTS = ("grid", "prefix", "pace", "ceiling", "short", "memory", "naive")
FULL = {
    "models": "hybrid,dense",
    "parts": ",".join(PARTS),
    "clients": "1,4,8,16",
    "prompts": "16,100,1000",
    "streams": "on,off",
    "rounds": 2,
    "share": 1.0,
}
SHORT = {
    "models": "tiny-hybrid",
    "parts": ",".join(PARTS),
    "clients": "1,4",
    "prompts": "16",
    "streams": "on,off",
    "rounds": 1,
    "share": 0.1,
}
SIDES: dict[str, type[servers.Ours] | type[servers.LlamaServer]] = {
    kind.name: kind for kind in (servers.Ours, servers.LlamaServer)
}


@dataclass(frozen=True)
class Plan:
    """What a session does. `share`: of the work that a full session does in a cell."""

    chosen: list[models.Model]
    parts: list[str]
    clients: list[int]
    prompts: list[int]
    streams: list[bool]
    rounds: int
    sides: list[servers.Server]
    share: float
    settings: Callable[[models.Model], servers.Settings]
    small: models.Model  # for short requests and for memory, beside the models


async def session(plan: Plan, count: Count, results: Results) -> None:
    """Run the parts of a plan on each model."""
    for model in plan.chosen:
        settings = plan.settings(model)
        if "grid" in plan.parts:
            await _grid(plan, model, settings, count, results)
        for number in range(plan.rounds):
            await _special(plan, model, settings, count, results, number)
        if "naive" in plan.parts:
            await _naive(plan, model, settings, count, results)
    if "short" in plan.parts:
        await _short_requests(plan, count, results)
    if "memory" in plan.parts:
        await _memory(plan, count, results)


async def _grid(plan: Plan, model: models.Model, settings: servers.Settings, count: Count, results: Results) -> None:
    for group in grid.cells(plan.clients, plan.prompts, plan.streams, plan.share):
        for number in range(plan.rounds):
            for server in plan.sides:
                await grid.run_group(server, settings, group, model.name, number, count, results)


async def _special(
    plan: Plan, model: models.Model, settings: servers.Settings, count: Count, results: Results, number: int
) -> None:
    few = plan.share < 1
    for server in plan.sides:
        if "prefix" in plan.parts:
            await parts.shared_prefix(server, settings, model.name, number, count, results, repeats=1 if few else 3)
        if "pace" in plan.parts:
            await parts.pace(
                server, settings, model.name, number, count, results,
                streams=min(4, settings.slots - 1), quiet_seconds=1 if few else 6, repeats=1 if few else 2,
            )  # fmt: skip
    if "ceiling" in plan.parts:
        for clients in (1, 4, settings.slots):
            steps = 40 if few else 160
            parts.raw_ceiling(settings, model.name, number, results, clients, steps)
            for server in plan.sides:
                await parts.steady_decode(server, settings, model.name, number, count, results, clients, steps)


async def _naive(plan: Plan, model: models.Model, settings: servers.Settings, count: Count, results: Results) -> None:
    """Whole answers only: the naive model has no streams."""
    for group in grid.cells([1, settings.slots], [16, 100][: len(plan.prompts)], [False], plan.share):
        for server in (servers.Ours(), servers.Naive()):
            await grid.run_group(server, settings, group, model.name, 0, count, results, part="naive")


async def _short_requests(plan: Plan, count: Count, results: Results) -> None:
    settings = plan.settings(plan.small)
    asked: list[tuple[servers.Server, str]] = [
        (servers.Ours("infer"), "infer"),
        (servers.Ours("generate"), "generate"),
        (servers.LlamaServer(), "completion"),
    ]
    for clients in (1, settings.slots):
        for number in range(plan.rounds):
            for server, route in asked:
                await parts.short_requests(
                    server, settings, plan.small.name, number, count, results,
                    route=route, clients=clients, requests=round(2000 * plan.share),
                )  # fmt: skip


async def _memory(plan: Plan, count: Count, results: Results) -> None:
    for model in (*plan.chosen, plan.small):
        requests = 2000 if model is plan.small else 48
        for server in plan.sides:
            await parts.memory(
                server, plan.settings(model), model.name, count, results,
                phases=2 if plan.share < 1 else 4, requests=max(8, round(requests * plan.share)),
            )  # fmt: skip


async def against_lab(plan: Plan, endpoints: Path, name: str, count: Count, results: Results) -> None:
    """The grid alone, on a host that runs already."""
    running = servers.lab(endpoints, name)
    for group in grid.cells(plan.clients, plan.prompts, plan.streams, plan.share):
        await grid.run_cells(running, group, name, 0, count, results, part="lab")


def main() -> None:
    """Run what the command line asks for, then write the report."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # whoever ends a session must not leave a server behind
    short = bool(options.short)
    small = models.MODELS["demo"]
    chosen = [models.MODELS[name] for name in options.models]
    files = {model.name: models.file(model) for model in (*chosen, small)}

    def settings(model: models.Model) -> servers.Settings:
        return servers.Settings(files[model.name], options.slots, options.n_ctx, options.threads, options.cache_mib)

    plan = Plan(
        chosen=chosen,
        parts=options.parts,
        clients=[int(word) for word in options.clients],
        prompts=[int(word) for word in options.prompts],
        streams=[word == "on" for word in options.streams],
        rounds=options.rounds,
        sides=[SIDES[name]() for name in options.servers],
        share=options.share,
        settings=settings,
        small=small,
    )
    tokenizer = Tokenizer(files["demo"])  # all models have its tokenizer

    def count(text: str) -> int:
        return len(tokenizer.tokens(text))

    with tempfile.TemporaryDirectory() as scratch:
        path = options.output or (Path(scratch) / "short.json" if short else RESULTS)
        about = {model.name: model.about for model in (*chosen, small)}
        facts = {"models": about, "slots": options.slots, "n_ctx": options.n_ctx, "threads": options.threads}
        results = Results(path, conditions(**facts, cache_mib=options.cache_mib, rounds=plan.rounds), options.keep)
        if options.lab:
            asyncio.run(against_lab(plan, options.lab, options.lab_model, count, results))
        else:
            asyncio.run(session(plan, count, results))
        wrong = [
            f"{record['part']} {record['server']}: {record['faults']}"
            for record in results.records
            if record.get("faults")
        ]
        print(report.text(report.read(path)))
    if wrong:
        sys.exit("bench: wrong answers:\n" + "\n".join(wrong))


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="every part once, on a tiny model, with few requests")
    for name, values in (("models", tuple(models.MODELS)), ("parts", PARTS), ("clients", None), ("prompts", None)):
        parser.add_argument(f"--{name}", type=_words, help=f"of {', '.join(values)}" if values else "numbers")
    parser.add_argument("--streams", type=_words, help="on, off")
    parser.add_argument("--rounds", type=int, help="how often each server gets its turn")
    parser.add_argument("--share", type=float, help="of the requests that a full session sends in a cell")
    parser.add_argument("--servers", type=_words, default=list(SIDES), help=f"of {', '.join(SIDES)}")
    parser.add_argument("--slots", type=int, default=8, help="parallel sequences of each server")
    parser.add_argument("--n-ctx", type=int, default=1536, help="tokens of each slot")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="compute threads")
    parser.add_argument("--cache-mib", type=int, default=256, help="prompt cache of each server")
    parser.add_argument("--keep", action="store_true", help="add to the file of results instead of writing it anew")
    parser.add_argument(
        "--output", type=Path, help=f"file of results; {RESULTS.relative_to(REPOSITORY)} unless --short"
    )
    parser.add_argument("--lab", type=Path, help="endpoints.json of a lab host that runs: the grid on it alone")
    parser.add_argument("--lab-model", default="qwen_gguf", help="the model there")
    options = parser.parse_args()
    for name, value in (SHORT if options.short else FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, value if isinstance(value, int | float) else _words(str(value)))
    for name, allowed in (
        ("models", tuple(models.MODELS)),
        ("parts", PARTS),
        ("streams", ("on", "off")),
        ("servers", tuple(SIDES)),
    ):
        if unknown := set(getattr(options, name)) - set(allowed):
            parser.error(f"--{name}: {', '.join(sorted(unknown))} is unknown; allowed are {', '.join(allowed)}")
    return options


if __name__ == "__main__":
    main()
