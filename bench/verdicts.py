"""What the records say about the targets. Ratios are turned so that above 1 is better than the peer."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.stats import geomean

Record = Mapping[str, Any]
OURS, PEER, RAW, NAIVE = "ours", "llama-server", "llama_decode", "naive"
MIB = 2**20
GROWTH_MIB = 4  # heaps breathe; a leak of a few hundred bytes per request shows over the phases' thousands


@dataclass(frozen=True)
class Verdict:
    """One target: what was asked, what came out, and by how much it is missed (empty: it is met)."""

    target: str
    measured: str
    missed: str


@dataclass(frozen=True)
class Pair:
    """A cell of the grid: the median over the rounds of a figure, ours and the peer's."""

    model: str
    prompt_tokens: int
    clients: int
    stream: bool
    ours: float
    peer: float
    more_is_better: bool

    @property
    def ratio(self) -> float:
        """Above 1: ours is better."""
        return self.ours / self.peer if self.more_is_better else self.peer / self.ours

    @property
    def name(self) -> str:
        """The cell in words."""
        how = "streamed" if self.stream else "whole"
        return f"{self.model}, prompt {self.prompt_tokens}, {self.clients} clients, {how}"


def median(records: Iterable[Record], *path: str) -> float | None:
    """The median over records of the figure at a path of keys; None when none has it."""
    values = []
    for record in records:
        value: Any = record
        for key in path:
            value = value.get(key) if value is not None else None
        if value is not None:
            values.append(float(value))
    return statistics.median(values) if values else None


def of(records: Sequence[Record], **wanted: Any) -> list[Record]:
    """The records that have these values."""
    return [record for record in records if all(record.get(key) == value for key, value in wanted.items())]


def cells(records: Sequence[Record], part: str = "grid") -> list[tuple[str, int, int, bool]]:
    """Model, prompt tokens, clients and streaming of the cells that ours has been in, in order."""
    keys = ("model", "prompt_tokens", "clients", "stream")
    found = {tuple(record[key] for key in keys) for record in of(records, part=part, server=OURS)}
    return sorted(found, key=lambda cell: (cell[0], cell[1], cell[2], not cell[3]))


def pairs(
    records: Sequence[Record], path: tuple[str, ...], more_is_better: bool, part: str = "grid", peer: str = PEER
) -> list[Pair]:
    """A figure in every cell that both servers have been in."""
    found = []
    for model, prompt_tokens, clients, stream in cells(records, part):
        here = of(records, part=part, model=model, prompt_tokens=prompt_tokens, clients=clients, stream=stream)
        ours, other = (median(of(here, server=server), *path) for server in (OURS, peer))
        if ours and other:
            found.append(Pair(model, prompt_tokens, clients, stream, ours, other, more_is_better))
    return found


def verdicts(records: Sequence[Record]) -> list[Verdict]:
    """All targets that there are records for."""
    return [
        *_grid(records),
        *_ceiling(records),
        *_prefix(records),
        *_pace(records),
        *_short(records),
        *_memory(records),
    ]


def _grid(records: Sequence[Record]) -> list[Verdict]:
    figures = {
        "tokens/s": pairs(records, ("tokens_per_s",), more_is_better=True),
        "TTFT p50": [pair for pair in pairs(records, ("ttft_ms", "p50"), more_is_better=False) if pair.stream],
        "TTFT p95": [pair for pair in pairs(records, ("ttft_ms", "p95"), more_is_better=False) if pair.stream],
    }
    found = []
    for name, cases in figures.items():
        if not cases:
            continue
        worse = sorted((pair for pair in cases if pair.ratio < 1), key=lambda pair: pair.ratio)
        worst = min(cases, key=lambda pair: pair.ratio)
        found.append(
            Verdict(
                f"{name} not worse than llama-server's in any of {len(cases)} cells",
                f"worst {worst.ratio:.2f} ({worst.name})",
                f"{len(worse)} cells, the worst by {(1 - worst.ratio) * 100:.0f} %" if worse else "",
            )
        )
        found.append(_at_least(f"{name}: geometric mean over the cells", geomean([pair.ratio for pair in cases]), 1.10))
    return found


def _at_least(name: str, value: float, wanted: float) -> Verdict:
    missed = "" if value >= wanted else f"{(1 - value / wanted) * 100:.0f} %"
    return Verdict(f"{name} at least {wanted:.2f}", f"{value:.2f}", missed)


def _at_most(name: str, value: float, wanted: float, unit: str = "") -> Verdict:
    missed = "" if value <= wanted else f"{value - wanted:.1f}{unit}"
    return Verdict(f"{name} at most {wanted:g}{unit}", f"{value:.1f}{unit}", missed)


def _ceiling(records: Sequence[Record]) -> list[Verdict]:
    found = []
    keys = sorted({(record["model"], record["clients"]) for record in of(records, part="ceiling", server=OURS)})
    for model, clients in keys:
        here = of(records, part="ceiling", model=model, clients=clients)
        ours, raw = (median(of(here, server=server), "tokens_per_s") for server in (OURS, RAW))
        if ours and raw:
            found.append(_at_least(f"{model}: {clients} streams, share of llama_decode alone", ours / raw, 0.95))
    return found


def _prefix(records: Sequence[Record]) -> list[Verdict]:
    found = []
    keys = sorted({(record["model"], record["route"]) for record in of(records, part="prefix", server=OURS)})
    for model, route in keys:
        here = of(records, part="prefix", model=model, route=route, server=OURS)
        first, second = (median(here, name, "p50") for name in ("first_ms", "second_ms"))
        if first and second:
            name = f"{model}, {'chat' if route == 'chat' else 'raw prompt'}: TTFT of a second request with the prefix"
            found.append(_at_most(name, 100 * second / first, 10, " % of the first's"))
    return found


def _pace(records: Sequence[Record]) -> list[Verdict]:
    found = []
    for model in sorted({record["model"] for record in of(records, part="pace", server=OURS)}):
        here = of(records, part="pace", model=model, server=OURS)
        quiet, disturbed = (median(here, name, "p95") for name in ("quiet_ms", "disturbed_ms"))
        if quiet and disturbed:
            name = f"{model}: gap p95 of streams while a long prompt is read"
            found.append(_at_most(name, disturbed / quiet, 3, " times the quiet one"))
    return found


def _short(records: Sequence[Record]) -> list[Verdict]:
    found = []
    for clients in sorted({record["clients"] for record in of(records, part="short", server=OURS)}):
        here = of(records, part="short", clients=clients)
        peer = median(of(here, server=PEER), "requests_per_s")
        for route in ("infer", "generate"):
            ours = median(of(here, server=OURS, route=route), "requests_per_s")
            if ours and peer:
                name = (
                    f"max_tokens 1 on the demo model, /{route}, {clients} clients: requests/s, share of llama-server's"
                )
                found.append(_at_least(name, ours / peer, 0.80))
    return found


def _memory(records: Sequence[Record]) -> list[Verdict]:
    found = []
    for model in dict.fromkeys(record["model"] for record in of(records, part="memory", server=OURS)):
        ours = of(records, part="memory", model=model, server=OURS)[-1]["readings"]
        peer = of(records, part="memory", model=model, server=PEER)
        if peer:
            over = (ours[-1]["engine"] - peer[-1]["readings"][-1]["server"]) / MIB
            found.append(_at_most(f"{model}: the engine's process over llama-server", over, 80, " MiB"))
        found.append(_at_most(f"{model}: the front's process", ours[-1]["front"] / MIB, 60, " MiB"))
        for part in ("engine", "front"):
            grown = (ours[-1][part] - ours[1][part]) / MIB
            found.append(
                _at_most(f"{model}: growth of the {part} from the first phase to the last", grown, GROWTH_MIB, " MiB")
            )
    return found
