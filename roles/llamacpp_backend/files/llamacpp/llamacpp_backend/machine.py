"""What this machine grants the engine: compute threads and memory. Reads the kernel's files, changes nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from .errors import LoadError

QUOTA_VARIABLE = "TRITON_CPU_QUOTA_PERCENT"


@dataclass(frozen=True)
class CpuPlan:
    """Threads for llama.cpp. `passive_wait`: idle threads must sleep, since spinning ones would eat the quota."""

    n_threads: int
    passive_wait: bool
    reason: str


def plan_cpu(requested: int, affinity: int, quota_percent: str | None) -> CpuPlan:
    """Choose threads from the CPUs this process may run on and the service's CPU quota (percent of one CPU).

    `requested` 0: computed. Raises LoadError when the quota is not a positive whole number.
    """
    quota: int | None = None
    if quota_percent:
        if not quota_percent.isascii() or not quota_percent.isdigit() or int(quota_percent) < 1:
            raise LoadError(f"{QUOTA_VARIABLE} is {quota_percent!r}; allowed is an integer of 1 or more, or nothing")
        quota = int(quota_percent)
    granted = affinity if quota is None else min(affinity, math.ceil(quota / 100))
    n_threads = requested or granted
    # More threads than CPUs wait for each other just as threads over the quota do.
    passive = n_threads > affinity or (quota is not None and quota < 100 * n_threads)
    source = "set by n_threads" if requested else "computed"
    limit = "none" if quota is None else f"{quota}%"
    return CpuPlan(n_threads, passive, f"{source}, {affinity} CPUs allowed, CPU quota {limit}")


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that can still be allocated: the least of the host's and of every cgroup above us; None when unknown.

    Page cache counts as available: the kernel gives it back, and the model's mapped file is in it.
    """
    limits = [limit for limit in (_host_available(root), *_cgroup_rooms(root)) if limit is not None]
    return min(limits) if limits else None


def _host_available(root: Path) -> int | None:
    return _field(root / "proc/meminfo", "MemAvailable:", scale=1024)


def _cgroup_rooms(root: Path) -> list[int | None]:
    """Room under each memory limit on the way from our cgroup to the root, for cgroup v2 and v1."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    rooms: list[int | None] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base, names = root / "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        group = base / path.strip("/")
        rooms += [_room(place, *names) for place in (group, *group.parents) if place.is_relative_to(base)]
    return rooms


def _room(group: Path, limit_name: str, usage_name: str) -> int | None:
    try:
        limit = (group / limit_name).read_text().strip()
        usage = int((group / usage_name).read_text())
    except (OSError, ValueError):
        return None
    if not limit.isdigit():  # "max"
        return None
    cache = sum(_field(group / "memory.stat", name) or 0 for name in ("active_file", "inactive_file"))
    return max(0, int(limit) - usage + cache)


def _field(path: Path, name: str, scale: int = 1) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        if len(words) >= 2 and words[0] == name:
            return int(words[1]) * scale
    return None
