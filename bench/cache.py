"""Where the benchmarks keep what takes long to make: one directory per set of inputs, there whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "triton-llamacpp"
SHELVES = CACHE / "bench"
DISTRIBUTION_PYTHON = Path("/usr/bin/python3")  # the one that a release's venv is made with


def key_of(inputs: Mapping[str, Any]) -> str:
    """Name a set of inputs: 12 hexadecimal digits."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:12]


def shelf(kind: str, inputs: Mapping[str, Any]) -> Path:
    """The directory for what these inputs make; it exists only once that is finished."""
    return SHELVES / f"{kind}-{key_of(inputs)}"


def made(kind: str, inputs: Mapping[str, Any], make: Callable[[Path], None]) -> Path:
    """Return the shelf of these inputs; `make` fills it when it is not there. Two processes at once: one makes it.

    A shelf is made at its final path, since a venv does not relocate; inputs.json, written last, says that it is whole.
    """
    directory = shelf(kind, inputs)
    marker = directory / "inputs.json"
    with _lock(directory.with_suffix(".lock")):
        if not marker.exists():
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            print(f"bench: making {directory}", file=sys.stderr, flush=True)
            make(directory)
            marker.write_text(json.dumps(inputs, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return directory


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def run_quietly(command: Sequence[str | Path], log: Path, stdin: str = "", **environment: str) -> None:
    """Run a command at the lowest priority, its output into a file. Raises SystemExit with that file's end."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as output, tempfile.TemporaryFile("w+") as given:
        given.write(stdin)
        given.seek(0)
        ended = subprocess.run(
            ["nice", "-n", "19", *map(str, command)],
            stdin=given,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=REPOSITORY,
            env={**os.environ, **environment},
            check=False,
        )
    if ended.returncode != 0:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:])
        raise SystemExit(f"bench: {' '.join(map(str, command))} ended with {ended.returncode}; {log}:\n{tail}")


def pip(python: Path, *arguments: str, requirements: str, log: Path) -> None:
    """Let the distribution's pip, run by `python`, work on hash-pinned requirements, as the roles do."""
    wheels = sorted(Path("/usr/share/python-wheels").glob("pip-*.whl"))
    if not wheels:
        raise SystemExit("bench: the distribution's pip is missing: install the package python3-venv")
    common = ["--require-hashes", "--no-input", "--disable-pip-version-check", "--progress-bar=off", "--no-deps"]
    run_quietly([python, wheels[-1] / "pip", *arguments, *common, "--requirement=/dev/stdin"], log, requirements)


def make_venv(directory: Path, log: Path) -> Path:
    """Make a venv of the distribution's Python, without pip; returns its Python."""
    run_quietly([DISTRIBUTION_PYTHON, "-m", "venv", "--without-pip", directory], log)
    return directory / "bin" / "python"
