"""The pictures of docs/benchmarks.md, as SVG; the same records give the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from bench.verdicts import OURS, PEER, Pair, Record, cells, median, of, pairs

STYLE = {
    OURS: {"color": "#1f6f54", "marker": "o", "label": "ours"},
    PEER: {"color": "#b5532a", "marker": "s", "label": "llama-server"},
}


def draw(records: Sequence[Record], directory: Path) -> list[str]:
    """Draw what there are records for; returns the files' names. Pictures of an earlier session go."""
    mpl.rcParams.update({"svg.hashsalt": "bench", "svg.fonttype": "none", "font.size": 9})
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("*.svg"):
        old.unlink()
    names = []
    for model in dict.fromkeys(cell[0] for cell in cells(records)):
        names += [_curves(records, model, directory), _ratios(records, model, directory)]
    return names


def _curves(records: Sequence[Record], model: str, directory: Path) -> str:
    """Over the number of clients, for each prompt length: tokens per second above, TTFT below; streamed."""
    here = of(records, part="grid", model=model, stream=True)
    prompts = sorted({record["prompt_tokens"] for record in here})
    figure = Figure(figsize=(3.2 * len(prompts) + 0.4, 5.4), layout="constrained")
    axes = figure.subplots(2, len(prompts), squeeze=False)
    for column, prompt in enumerate(prompts):
        clients = sorted({record["clients"] for record in of(here, prompt_tokens=prompt)})
        for server, style in STYLE.items():
            mine = [of(here, prompt_tokens=prompt, clients=number, server=server) for number in clients]
            rates = [median(cell, "tokens_per_s") for cell in mine]
            axes[0][column].plot(clients, [_or_nan(rate) for rate in rates], **style)
            for percent, line in (("p50", "-"), ("p95", ":")):
                waits = [_or_nan(median(cell, "ttft_ms", percent)) for cell in mine]
                label = f"{style['label']} {percent}"
                axes[1][column].plot(clients, waits, line, color=style["color"], marker=style["marker"], label=label)
        axes[0][column].set_title(f"prompts of {prompt} tokens")
        axes[0][column].set_ylim(bottom=0)
        axes[1][column].set_yscale("log")
        axes[1][column].set_xlabel("clients")
        for row in (0, 1):
            axes[row][column].set_xscale("log", base=2)
            axes[row][column].set_xticks(clients, [str(number) for number in clients])
            axes[row][column].grid(alpha=0.3)
    axes[0][0].set_ylabel("tokens/s")
    axes[1][0].set_ylabel("TTFT, ms")
    axes[0][0].legend()
    axes[1][0].legend()
    figure.suptitle(f"{model}, streamed")
    return _save(figure, directory / f"{model}-clients.svg")


def _ratios(records: Sequence[Record], model: str, directory: Path) -> str:
    """How much better than the peer each cell is, on a logarithmic axis: right of 1 is better."""
    here = of(records, part="grid", model=model)
    marks: list[tuple[str, str, str, list[Pair]]] = [
        ("tokens/s", "#1f6f54", "o", pairs(here, ("tokens_per_s",), True)),
        ("TTFT p50", "#3b6fb6", "^", [pair for pair in pairs(here, ("ttft_ms", "p50"), False) if pair.stream]),
        ("TTFT p95", "#8a5fb0", "v", [pair for pair in pairs(here, ("ttft_ms", "p95"), False) if pair.stream]),
    ]
    names = list(dict.fromkeys(pair.name.partition(", ")[2] for *_, found in marks for pair in found))[::-1]
    figure = Figure(figsize=(7.2, 0.24 * len(names) + 1.2), layout="constrained")
    axis = figure.subplots()
    for label, color, marker, found in marks:
        rows = [names.index(pair.name.partition(", ")[2]) for pair in found]
        axis.scatter([pair.ratio for pair in found], rows, color=color, marker=marker, s=22, label=label, zorder=3)
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=8))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_yticks(range(len(names)), names)
    axis.grid(alpha=0.3)
    axis.set_xlabel("times as good as llama-server")
    axis.legend(loc="best")
    axis.set_title(model)
    return _save(figure, directory / f"{model}-ratios.svg")


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _save(figure: Figure, path: Path) -> str:
    figure.savefig(path, metadata={"Date": None})
    return path.name
