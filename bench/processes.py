"""What the kernel accounts for a process and all below it: CPU seconds and resident memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TICK = 1 / os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Process:
    """One process: its command line, CPU seconds so far (children that have ended included), resident bytes."""

    pid: int
    command: tuple[str, ...]
    cpu_seconds: float
    rss: int


def tree(root: int) -> list[Process]:
    """The process `root` and all its descendants. A process that ends meanwhile is left out."""
    parents: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        waiting += parents.get(pid, [])
        if process := read(pid):
            found.append(process)
    return found


def read(pid: int) -> Process | None:
    """One process; None when there is none with this number."""
    fields = _stat(pid)
    if fields is None:
        return None
    try:
        command = (PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return None
    # Fields 14 to 17 of proc(5): utime, stime, cutime, cstime; 24: rss in pages. Here they begin at field 3.
    cpu = sum(int(fields[number - 3]) for number in (14, 15, 16, 17)) * TICK
    return Process(pid, tuple(part.decode(errors="replace") for part in command), cpu, int(fields[24 - 3]) * PAGE)


def cpu_seconds(root: int) -> float:
    """CPU seconds of a process and all its descendants, since each began."""
    return sum(process.cpu_seconds for process in tree(root))


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the command's name, which may hold anything: state, parent, ..."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
