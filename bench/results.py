"""The file of results: the conditions of a session, and one record for each server in each cell of each round."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from bench.cache import REPOSITORY
from bench.recipe import llama_cpp, triton_wheel

# What tells one record from another; a part that does not vary in one of them leaves it out.
KEY = ("part", "model", "server", "prompt_tokens", "clients", "stream", "route", "kind", "round")


class Results:
    """The records of a session, on disk after each."""

    def __init__(self, path: Path, conditions: Mapping[str, Any], keep: bool) -> None:
        """`keep`: add to what the file holds, replacing records of the same key."""
        self._path = path
        self.records: list[dict[str, Any]] = []
        self._conditions = dict(conditions)
        if keep and path.exists():
            before = json.loads(path.read_text(encoding="utf-8"))
            self.records = before["records"]
            self._conditions["models"] = {**before["conditions"]["models"], **conditions["models"]}

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a record and write the file, by a rename: a session that is broken off leaves a whole one."""
        new = {**record, "commit": self._conditions["commit"]}
        self.records = [old for old in self.records if _key(old) != _key(new)] + [new]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"conditions": self._conditions, "records": self.records}, indent=1) + "\n"
        part = self._path.with_suffix(".part")
        part.write_text(text, encoding="utf-8")
        part.rename(self._path)


def _key(record: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(record.get(name) for name in KEY)


def conditions(**settings: Any) -> dict[str, Any]:
    """What a reader must know of the machine, the versions and the settings."""
    sources, triton = llama_cpp(), triton_wheel()
    memory = re.search(r"^MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text(), flags=re.MULTILINE)
    return {
        "date": date.today().isoformat(),
        "commit": _commit(),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory[1]) / 2**20, 1) if memory else None,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "triton": triton.triton,
        "llama_cpp_python": sources.version,
        "cmake": list(sources.cmake),
        **settings,
    }


def cpu_name() -> str:
    """The processor as the kernel names it."""
    match = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
    return match[1] if match else platform.machine()


def _commit() -> str:
    """The commit of the work tree; with a + when the product or the benchmarks differ from it."""
    git = ["git", "-C", str(REPOSITORY)]
    name = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "roles", "bench"], check=False)
    return name.stdout.strip() + ("+" if changed.returncode else "")
