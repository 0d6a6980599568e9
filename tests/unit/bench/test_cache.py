"""What is made once stays, and what was not made to its end is made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import cache


@pytest.fixture(autouse=True)
def shelves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "SHELVES", tmp_path)


def test_made_once_for_the_same_inputs() -> None:
    calls: list[Path] = []

    def make(directory: Path) -> None:
        calls.append(directory)
        (directory / "file").write_text("x")

    first = cache.made("thing", {"flags": ["a"]}, make)
    assert cache.made("thing", {"flags": ["a"]}, make) == first == calls[0]
    assert cache.made("thing", {"flags": ["b"]}, make) != first
    assert len(calls) == 2


def test_made_again_after_a_failure() -> None:
    def fail(directory: Path) -> None:
        (directory / "half").write_text("x")
        raise SystemExit("broken")

    with pytest.raises(SystemExit, match="broken"):
        cache.made("thing", {}, fail)
    directory = cache.made("thing", {}, lambda directory: (directory / "whole").touch())
    assert sorted(path.name for path in directory.iterdir()) == ["inputs.json", "whole"]


def test_a_failed_command_says_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"ended with 3(.|\n)*no such thing"):
        cache.run_quietly(["sh", "-c", "cat; exit 3"], tmp_path / "log", stdin="no such thing\n")
