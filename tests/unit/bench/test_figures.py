"""Statistics, prompts of an exact length, and what the kernel says of processes."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from bench import grid, processes
from bench.measure import make_requests, spread
from bench.prompts import prompt
from bench.stats import geomean, percentile


def test_percentile_lies_between_its_neighbours() -> None:
    assert percentile([4, 1, 3, 2], 50) == 2.5
    assert percentile([10], 95) == 10
    assert percentile(list(range(101)), 95) == 95
    assert percentile([], 50) is None


def test_geomean_of_opposite_ratios_is_one() -> None:
    assert geomean([0.5, 2.0]) == pytest.approx(1)
    with pytest.raises(ValueError, match="nothing"):
        geomean([])


def test_spread_is_in_milliseconds() -> None:
    assert spread([0.1, 0.3]) == {"p50": 200.0, "p95": 290.0, "count": 2}


def by_pairs(text: str) -> int:
    """A tokenizer of two characters to a token."""
    return -(-len(text) // 2)


@pytest.mark.parametrize("tokens", [1, 16, 1000])
def test_prompts_have_exactly_so_many_tokens(tokens: int) -> None:
    assert by_pairs(prompt(by_pairs, tokens, seed=3)) == tokens


def test_prompts_of_one_seed_are_alike_and_of_others_begin_otherwise() -> None:
    first, again = (make_requests(by_pairs, 4, 16, 8, True, "seed") for _ in range(2))
    assert first == again
    others = make_requests(by_pairs, 4, 16, 8, True, "other")
    assert len({wanted.prompt[:6] for wanted in (*first, *others)}) == 8


def test_a_length_that_no_text_has_is_refused() -> None:
    with pytest.raises(ValueError, match="no text of 3 tokens"):
        prompt(lambda text: 2 * by_pairs(text), 3, seed=0)


def test_every_client_has_something_to_ask() -> None:
    for share in (0.01, 1.0):
        for group in grid.cells([1, 4, 16], [16, 1000], [True, False], share):
            assert {cell.stream for cell in group} == {True, False}
            for cell in group:
                assert cell.requests >= cell.clients


BURN = "import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', sys.argv[1]]).wait()"


def test_cpu_and_memory_of_a_grandchild_are_counted() -> None:
    burn = "import time\nblock = bytearray(64 << 20)\nend = time.process_time() + 0.3\n" + (
        "while time.process_time() < end: pass\nprint(flush=True)\ntime.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", BURN, burn], stdout=subprocess.PIPE)
    below: list[processes.Process] = []
    try:
        assert process.stdout
        process.stdout.readline()
        below = processes.tree(process.pid)
        assert len(below) == 2
        assert 0.3 <= processes.cpu_seconds(process.pid) < 5
        assert 64 << 20 < sum(one.rss for one in below) < 1 << 30
        assert any("bytearray" in word for one in below for word in one.command)
    finally:
        for one in below:
            subprocess.run(["kill", str(one.pid)], check=False)
        process.kill()
        process.communicate()


def test_a_process_that_is_gone_is_none() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    give_up = time.monotonic() + 5
    while processes.read(process.pid) is not None and time.monotonic() < give_up:
        time.sleep(0.01)
    assert processes.read(process.pid) is None
    assert processes.tree(process.pid) == []
