"""Writes docs/benchmarks.md and its plots from a file of results.

python -m bench.report [bench/results/serving.json]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import verdicts
from bench.cache import REPOSITORY
from bench.verdicts import NAIVE, OURS, PEER, RAW, Record, median, of, pairs

DOCUMENT = REPOSITORY / "docs" / "benchmarks.md"
PLOTS = REPOSITORY / "docs" / "benchmarks"
RESULTS = REPOSITORY / "bench" / "results" / "serving.json"
NOTES = REPOSITORY / "bench" / "notes.md"  # by hand: where the time goes, and what was tried

HEAD = """\
# Benchmarks

<!-- Written by `make bench` (bench/report.py) from bench/results/serving.json and bench/notes.md. -->

Ours is this repository's backend inside Triton, asked over Triton's HTTP routes on loopback. The peer is `llama-
server`, built from the llama.cpp sources and with the compile flags that our llama-cpp-python wheel is built from.
Both serve the same file with the same threads, parallel slots, context per slot and prompt cache; other settings are
each server's own defaults. One server runs at a time, started afresh and warmed up, and they take turns (ours, peer,
ours, peer); every figure is the median over these rounds. The clients (closed loop: each sends its next request when
the last is answered, on a new connection) run on the same machine. Prompts are random words of exactly so many
tokens, none beginning like another; answers are greedy and of fixed length, and their token counts are checked. A
ratio above 1 means that ours is better.
"""


def read(path: Path) -> dict[str, Any]:
    """Read a file of results."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def text(document: Mapping[str, Any], plots: Sequence[str] = ()) -> str:
    """The whole document; `plots` are the names of its pictures."""
    records: list[Record] = document["records"]
    sections = [HEAD, _conditions(document["conditions"], records), _targets(records), _notes(), _pictures(plots)]
    sections += [_grid(records, model) for model in dict.fromkeys(r["model"] for r in of(records, part="grid"))]
    sections += [
        _ceiling(records),
        _prefix(records),
        _pace(records),
        _short(records),
        _memory(records),
        _naive(records),
        _lab(records),
    ]
    return "\n".join(section for section in sections if section)


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}"
    return str(value)


def _conditions(facts: Mapping[str, Any], records: Sequence[Record]) -> str:
    commits = ", ".join(dict.fromkeys([record["commit"] for record in records] or [facts["commit"]]))
    rows = [
        ("date, commit", f"{facts['date']}, {commits}"),
        ("machine", f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, Linux {facts['kernel']}"),
        ("Triton, llama-cpp-python, Python", f"{facts['triton']}, {facts['llama_cpp_python']}, {facts['python']}"),
        ("compile flags", " ".join(facts["cmake"])),
        ("both servers", f"{facts['threads']} threads, {facts['slots']} slots of {facts['n_ctx']} tokens, "
         f"prompt cache {facts['cache_mib']} MiB"),
        *((f"model `{name}`", about) for name, about in facts["models"].items()),
    ]  # fmt: skip
    body = "".join(f"| {name} | {value} |\n" for name, value in rows)
    return f"## Conditions\n\n| | |\n|---|---|\n{body}"


def _targets(records: Sequence[Record]) -> str:
    rows = [
        (verdict.target, verdict.measured, f"**missed by {verdict.missed}**" if verdict.missed else "met")
        for verdict in verdicts.verdicts(records)
    ]
    body = "".join("| " + " | ".join(row) + " |\n" for row in rows)
    return f"## Targets\n\n| target | measured | |\n|---|---|---|\n{body}" if rows else ""


def _notes() -> str:
    if not NOTES.exists():
        return ""
    return f"## What is missed, and why\n\n{NOTES.read_text(encoding='utf-8').strip()}\n"


def _pictures(plots: Sequence[str]) -> str:
    if not plots:
        return ""
    return "## Pictures\n\n" + "".join(f"![{name}]({PLOTS.name}/{name})\n\n" for name in plots)


def _grid(records: Sequence[Record], model: str) -> str:
    here = of(records, part="grid", model=model)
    rate = {_place(pair): pair for pair in pairs(here, ("tokens_per_s",), True)}
    streamed: list[list[object]] = []
    whole: list[list[object]] = []
    for (prompt, clients, stream), pair in rate.items():
        cell = of(here, prompt_tokens=prompt, clients=clients, stream=stream)
        row: list[object] = [f"{prompt} tokens, {clients} clients", pair.ours, pair.peer, f"**{pair.ratio:.2f}**"]
        wait = "ttft_ms" if stream else "latency_ms"
        for percent in ("p50", "p95"):
            ours, peer = _both(cell, wait, percent)
            row += [ours, peer, f"**{peer / ours:.2f}**" if ours and peer else None]
        if stream:
            row += ["{} / {}".format(*map(_cell, _both(cell, "gap_ms", "p95")))]
        row += ["{} / {}".format(*map(_cell, _both(cell, "cpu_ms_per_token")))]
        (streamed if stream else whole).append(row)
    common = ["prompt, clients", "tokens/s", "llama-server", "ratio"]
    tail = ["CPU ms per token, ours / llama-server's"]
    parts = [f"## Model `{model}`\n"]
    for name, rows, wait, extra in (
        ("Streamed", streamed, "TTFT", ["gap p95 ms, ours / llama-server's"]),
        ("Whole answers", whole, "time of an answer", []),
    ):
        if rows:
            waits = [word for p in ("p50", "p95") for word in (f"{wait} {p} ms", "llama-server", "ratio")]
            parts.append(f"### {name}\n\n{table([*common, *waits, *extra, *tail], rows)}")
    return "\n".join(parts)


def _place(pair: verdicts.Pair) -> tuple[int, int, bool]:
    return pair.prompt_tokens, pair.clients, pair.stream


def _both(records: Sequence[Record], *path: str, servers: tuple[str, str] = (OURS, PEER)) -> tuple[float | None, ...]:
    return tuple(median(of(records, server=server), *path) for server in servers)


def _ratio(ours: float | None, other: float | None) -> float | None:
    return ours / other if ours and other else None


def _rows(records: Sequence[Record], part: str, *keys: str) -> Iterator[tuple[tuple[Any, ...], list[Record]]]:
    """The records of a part, in groups of the same values of `keys`, in the order of their coming."""
    here = of(records, part=part)
    for values in dict.fromkeys(tuple(record.get(key) for key in keys) for record in here):
        yield values, of(here, **dict(zip(keys, values, strict=True)))


def _ceiling(records: Sequence[Record]) -> str:
    rows = []
    for (model, clients), here in _rows(records, "ceiling", "model", "clients"):
        raw = median(of(here, server=RAW), "tokens_per_s")
        ours, peer = _both(here, "tokens_per_s")
        rows.append([f"{model}, {clients} streams", raw, ours, _ratio(ours, raw), peer, _ratio(peer, raw)])
    head = ["decode tokens/s while all streams run", "llama_decode alone", "ours", "share", "llama-server", "share"]
    return f"## The ceiling\n\n{table(head, rows)}" if rows else ""


def _prefix(records: Sequence[Record]) -> str:
    rows = []
    for (model, route, server), here in _rows(records, "prefix", "model", "route", "server"):
        first, second = median(here, "first_ms", "p50"), median(here, "second_ms", "p50")
        share = _ratio(second, first)
        rows.append([f"{model}, {route}, {server}", first, second, f"{share:.1%}" if share else None])
    head = ["a prefix of 1,000 tokens", "TTFT ms, first request", "second request", "share"]
    return f"## Shared prefixes\n\n{table(head, rows)}" if rows else ""


def _pace(records: Sequence[Record]) -> str:
    rows = []
    for (model, server), here in _rows(records, "pace", "model", "server"):
        quiet, disturbed = median(here, "quiet_ms", "p95"), median(here, "disturbed_ms", "p95")
        longest, ttft = median(here, "longest_ms"), median(here, "ttft_ms", "p50")
        rows.append([f"{model}, {server}", quiet, disturbed, _ratio(disturbed, quiet), longest, ttft])
    head = ["gap between tokens of four streams, ms", "p95, quiet", "p95 while 1,000 tokens are read", "times"]
    head += ["longest", "TTFT of the 1,000 tokens"]
    return f"## Streams beside a long prompt\n\n{table(head, rows)}" if rows else ""


def _short(records: Sequence[Record]) -> str:
    rows = []
    for (clients, server, route), here in _rows(records, "short", "clients", "server", "route"):
        peer = median(of(records, part="short", clients=clients, server=PEER), "requests_per_s")
        rate = median(here, "requests_per_s")
        wait = [median(here, "latency_ms", percent) for percent in ("p50", "p95")]
        rows.append([f"{clients} clients, {server}, {route}", rate, _ratio(rate, peer), *wait])
    head = ["max_tokens 1, demo model", "requests/s", "times llama-server's", "p50 ms", "p95 ms"]
    return f"## Short requests\n\n{table(head, rows)}" if rows else ""


def _memory(records: Sequence[Record]) -> str:
    rows = []
    for (model, server), here in _rows(records, "memory", "model", "server"):
        readings = here[-1]["readings"]
        for part in sorted(readings[0]):
            sizes = [round(reading[part] / verdicts.MIB, 1) for reading in readings]
            rows.append([f"{model}, {server}: {part}", sizes[0], sizes[1], sizes[-1], here[-1]["requests"]])
    head = ["resident MiB", "warmed up", "after the first phase", "after the last", "requests in a phase"]
    return f"## Memory\n\n{table(head, rows)}" if rows else ""


def _naive(records: Sequence[Record]) -> str:
    rows = [
        [f"{pair.model}, {pair.prompt_tokens} tokens, {pair.clients} clients", pair.ours, pair.peer, pair.ratio]
        for pair in pairs(records, ("tokens_per_s",), True, part="naive", peer=NAIVE)
    ]
    head = ["whole answers", "tokens/s", "naive model", "ratio"]
    words = "The naive model is the well-known how-to's `model.py`: one `Llama` object, one request at a time.\n"
    return f"## Against the naive model\n\n{words}\n{table(head, rows)}" if rows else ""


def _lab(records: Sequence[Record]) -> str:
    rows = []
    for (prompt, clients, stream), here in _rows(records, "lab", "prompt_tokens", "clients", "stream"):
        waits = [median(here, "ttft_ms" if stream else "latency_ms", percent) for percent in ("p50", "p95")]
        name = f"{prompt} tokens, {clients} clients, {'streamed' if stream else 'whole'}"
        rows.append([name, median(here, "tokens_per_s"), *waits])
    head = ["a host that ran already", "tokens/s", "TTFT (whole: time of an answer) p50 ms", "p95 ms"]
    return f"## Through the edge\n\n{table(head, rows)}" if rows else ""


def main() -> None:
    """Write the document and the plots."""
    from bench import plots  # only here, as a session needs no plotting library

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=Path, default=RESULTS)
    options = parser.parse_args()
    if not options.results.exists():
        sys.exit(f"bench: there are no results in {options.results}: run `python -m bench.run` first")
    document = read(options.results)
    names = plots.draw(document["records"], PLOTS)
    DOCUMENT.write_text(text(document, names), encoding="utf-8")


if __name__ == "__main__":
    main()
