"""From records to verdicts, tables and pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import plots, report
from bench.results import Results
from bench.verdicts import MIB, verdicts

CONDITIONS: dict[str, Any] = {
    "date": "2026-01-02",
    "commit": "abc",
    "cpu": "A CPU",
    "cores": 2,
    "memory_gib": 8.0,
    "kernel": "6",
    "python": "3.11.2",
    "triton": "2.51.0",
    "llama_cpp_python": "0.3.36",
    "cmake": ["-DX=ON"],
    "models": {"hybrid": "a model"},
    "slots": 8,
    "n_ctx": 1536,
    "threads": 2,
    "cache_mib": 256,
    "rounds": 2,
}


def cell(
    server: str, rate: float, ttft: float, clients: int = 1, stream: bool = True, number: int = 0
) -> dict[str, Any]:
    """A record of the grid."""
    waits = {"p50": ttft, "p95": 2 * ttft, "count": 8}
    return {
        "part": "grid",
        "model": "hybrid",
        "server": server,
        "prompt_tokens": 16,
        "clients": clients,
        "stream": stream,
        "round": number,
        "tokens_per_s": rate,
        "ttft_ms": waits,
        "latency_ms": waits,
        "gap_ms": waits,
        "cpu_ms_per_token": 30.0,
        "commit": "abc",
        "faults": [],
    }


def special() -> list[dict[str, Any]]:
    """Records of all other parts, that meet every target."""
    ours, peer = ({"model": "hybrid", "round": 0, "commit": "abc", "server": name} for name in ("ours", "llama-server"))
    wait = {"p50": 1.0, "p95": 2.0}
    short = {"part": "short", "clients": 8, "latency_ms": wait}
    memory = {"part": "memory", "requests": 100}
    pace = {"quiet_ms": {"p95": 10.0}, "disturbed_ms": {"p95": 29.0}, "longest_ms": 40.0, "ttft_ms": wait}
    return [
        {**ours, "part": "ceiling", "clients": 4, "tokens_per_s": 96.0},
        {**ours, "server": "llama_decode", "part": "ceiling", "clients": 4, "tokens_per_s": 100.0},
        {**ours, "part": "prefix", "route": "chat", "first_ms": {"p50": 100.0}, "second_ms": {"p50": 9.0}},
        {**ours, "part": "pace", **pace},
        {**ours, **short, "route": "infer", "requests_per_s": 90.0},
        {**peer, **short, "route": "completion", "requests_per_s": 100.0},
        {**ours, **memory, "readings": [{"engine": 500 * MIB, "front": 40 * MIB, "server": 30 * MIB}] * 3},
        {**peer, **memory, "readings": [{"server": 450 * MIB}] * 3},
    ]


GOOD = [
    *(cell("ours", 120.0, 8.0, clients, stream) for clients in (1, 4) for stream in (True, False)),
    *(cell("llama-server", 100.0, 10.0, clients, stream) for clients in (1, 4) for stream in (True, False)),
    *special(),
]


def missed(records: list[dict[str, Any]]) -> list[str]:
    """The targets that are missed."""
    return [verdict.target for verdict in verdicts(records) if verdict.missed]


def changed(place: int, **values: Any) -> list[dict[str, Any]]:
    """The good records with one changed."""
    return [{**record, **values} if index == place else record for index, record in enumerate(GOOD)]


def of_part(part: str, server: str = "ours") -> int:
    return next(i for i, record in enumerate(GOOD) if (record["part"], record["server"]) == (part, server))


def test_good_records_meet_every_target() -> None:
    assert missed(GOOD) == []
    assert len(verdicts(GOOD)) == 14


GROWN = [{"engine": 500 * MIB, "front": 40 * MIB}] * 2 + [{"engine": 507 * MIB, "front": 40 * MIB}]
LARGE = [{"engine": 540 * MIB, "front": 61 * MIB}] * 3


@pytest.mark.parametrize(
    ("part", "values", "target"),
    [
        ("grid", {"tokens_per_s": 90.0}, "tokens/s not worse"),
        ("grid", {"ttft_ms": {"p50": 11.0, "p95": 12.0}}, "TTFT p50 not worse"),
        ("grid", {"ttft_ms": {"p50": 9.0, "p95": 21.0}}, "TTFT p95 not worse"),
        ("grid", {"tokens_per_s": 60.0}, "tokens/s: geometric mean"),
        ("ceiling", {"tokens_per_s": 94.0}, "share of llama_decode alone"),
        ("prefix", {"second_ms": {"p50": 11.0}}, "second request with the prefix"),
        ("pace", {"disturbed_ms": {"p95": 31.0}}, "while a long prompt is read"),
        ("short", {"requests_per_s": 79.0}, "share of llama-server's"),
        ("memory", {"readings": LARGE}, "engine's process over llama-server"),
        ("memory", {"readings": LARGE}, "front's process"),
        ("memory", {"readings": GROWN}, "growth of the engine"),
    ],
)
def test_every_target_can_be_missed(part: str, values: dict[str, Any], target: str) -> None:
    assert any(target in name for name in missed(changed(of_part(part), **values)))


def test_the_verdict_is_on_the_median_of_the_rounds() -> None:
    slow = [cell("ours", rate, 8.0, number=number) for number, rate in enumerate((50.0, 110.0, 120.0))]
    assert missed([*slow, cell("llama-server", 100.0, 10.0)]) == []


def test_the_document_has_every_part() -> None:
    text = report.text({"conditions": CONDITIONS, "records": GOOD}, ["hybrid-clients.svg"])
    for words in ("A CPU", "## Targets", "met", "### Streamed", "### Whole answers", "## The ceiling", "## Memory"):
        assert words in text
    assert "| 16 tokens, 1 clients | 120.0 | 100.0 | **1.20** |" in text
    assert "](benchmarks/hybrid-clients.svg)" in text
    assert "missed by" not in text
    assert "**missed by" in report.text({"conditions": CONDITIONS, "records": changed(0, tokens_per_s=50.0)})


def test_the_document_of_no_records_is_its_head() -> None:
    assert "## Targets" not in report.text({"conditions": CONDITIONS, "records": []})


def test_pictures_are_the_same_bytes_again(tmp_path: Path) -> None:
    names = plots.draw(GOOD, tmp_path)
    assert names == ["hybrid-clients.svg", "hybrid-ratios.svg"]
    first = [(tmp_path / name).read_bytes() for name in names]
    (tmp_path / "old.svg").touch()
    assert plots.draw(GOOD, tmp_path) == names
    assert [(tmp_path / name).read_bytes() for name in names] == first
    assert not (tmp_path / "old.svg").exists()
    assert first[0].startswith(b"<?xml")


def test_results_replace_records_of_the_same_key_only(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    Results(path, CONDITIONS, keep=False).add(cell("ours", 1.0, 1.0))
    kept = Results(path, {**CONDITIONS, "models": {"dense": "another"}}, keep=True)
    kept.add(cell("ours", 2.0, 1.0))
    kept.add(cell("ours", 3.0, 1.0, number=1))
    records = json.loads(path.read_text())["records"]
    assert [record["tokens_per_s"] for record in records] == [2.0, 3.0]
    assert json.loads(path.read_text())["conditions"]["models"] == {"hybrid": "a model", "dense": "another"}
    Results(path, CONDITIONS, keep=False).add(cell("ours", 4.0, 1.0))
    assert len(json.loads(path.read_text())["records"]) == 1
