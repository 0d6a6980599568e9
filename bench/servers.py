"""The servers under test, each started afresh in a directory of its own and stopped by its process id."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench import http, processes, triton
from bench.dialects import Dialect, LlamaServerDialect, NaiveDialect, TritonDialect
from bench.peers import llama_server, naive

HOST = "127.0.0.1"
START_SECONDS = 120.0
STOP_SECONDS = 60.0
MODEL = "bench"  # the name that every model is served under


@dataclass(frozen=True)
class Settings:
    """What all servers are given alike. `n_ctx` is in tokens per slot."""

    gguf: Path
    slots: int
    n_ctx: int
    threads: int
    cache_mib: int


@dataclass(frozen=True)
class Running:
    """A server that answers. `pid` is None when it was not started here."""

    name: str
    host: str
    port: int
    dialect: Dialect
    pid: int | None

    def cpu_seconds(self) -> float | None:
        """CPU seconds of all its processes so far."""
        return None if self.pid is None else processes.cpu_seconds(self.pid)

    def memory(self) -> dict[str, int]:
        """Resident bytes by part: of ours "server", "engine" and "front"; of others "server"."""
        parts: dict[str, int] = {}
        for process in processes.tree(self.pid) if self.pid is not None else []:
            part = _part(process.command)
            parts[part] = parts.get(part, 0) + process.rss
        return parts


class Server(Protocol):
    """A kind of server."""

    @property
    def name(self) -> str:
        """How results call it."""

    def prepare(self) -> None:
        """Make what a start needs, before anything is timed."""

    def command(self, settings: Settings, port: int, directory: Path) -> Sequence[str]:
        """Lay out what it needs below `directory`; returns the command that serves `settings` on `port`."""

    @property
    def dialect(self) -> Dialect:
        """How it is spoken to."""

    @property
    def ready_path(self) -> str:
        """Answers 200 once requests are served."""


class LlamaServer:
    """The peer: the same threads, slots, context and cache; its own batch sizes, as it chose them for itself."""

    name = "llama-server"
    ready_path = "/health"

    @property
    def dialect(self) -> Dialect:
        return LlamaServerDialect()

    def prepare(self) -> None:
        llama_server.built()

    def command(self, settings: Settings, port: int, directory: Path) -> Sequence[str]:
        return llama_server.command(
            settings.gguf, port, settings.slots, settings.n_ctx, settings.threads, settings.cache_mib
        )


class Ours:
    """tritonserver with the work tree's backend. `route_whole`: where whole answers are asked for."""

    name = "ours"
    ready_path = f"/v2/models/{MODEL}/ready"

    def __init__(self, route_whole: str = "generate") -> None:
        self._dialect = TritonDialect(MODEL, route_whole)

    @property
    def dialect(self) -> Dialect:
        return self._dialect

    def prepare(self) -> None:
        triton.tree()
        triton.venv()

    def command(self, settings: Settings, port: int, directory: Path) -> Sequence[str]:
        engine = {
            "n_ctx": settings.n_ctx,
            "n_threads": settings.threads,
            "n_parallel": settings.slots,
            "prompt_cache_mib": settings.cache_mib,
        }
        repository, backends = triton.lay_out(directory, MODEL, settings.gguf, engine, {"temperature": 0.0, "stop": []})
        return _tritonserver(repository, backends, port, [f"{MODEL}_stream", MODEL])


class Naive:
    """The how-to's model: one Llama object, one request at a time, no streaming."""

    name = "naive"
    ready_path = f"/v2/models/{MODEL}/ready"

    @property
    def dialect(self) -> Dialect:
        return NaiveDialect(MODEL)

    def prepare(self) -> None:
        triton.tree()
        triton.venv()

    def command(self, settings: Settings, port: int, directory: Path) -> Sequence[str]:
        naive.lay_out(directory / "models" / MODEL, settings.gguf, settings.n_ctx, settings.threads, triton.venv())
        return _tritonserver(directory / "models", triton.backends(directory), port, [MODEL])


def _tritonserver(repository: Path, backends: Path, port: int, models: Sequence[str]) -> list[str]:
    """The command line of the unit triton.service, but for its sockets."""
    return [
        str(triton.tree() / "bin" / "tritonserver"),
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        *(f"--load-model={model}" for model in models),
        f"--backend-directory={backends}",
        f"--cache-directory={triton.tree() / 'caches'}",
        f"--http-address={HOST}",
        f"--http-port={port}",
        "--http-thread-count=8",
        "--allow-grpc=false",
        f"--metrics-address={HOST}",
        f"--metrics-port={free_port()}",
        "--allow-gpu-metrics=false",
        "--exit-timeout-secs=20",
    ]


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def started(server: Server, settings: Settings) -> AsyncIterator[Running]:
    """Start a server, wait until it answers, stop it at the end. Raises SystemExit with its log when it fails."""
    server.prepare()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        directory, port = Path(name), free_port()
        log = directory / "log"
        with log.open("w") as output:
            process = subprocess.Popen(
                server.command(settings, port, directory),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env={**os.environ, **ENVIRONMENT},
            )
        try:
            await _wait(server, process, port, log)
            yield Running(server.name, HOST, port, server.dialect, process.pid)
        finally:
            _stop(process)


# As triton.service sets them; bytecode of the work tree's backend must not be written by a benchmark.
ENVIRONMENT: Mapping[str, str] = {
    "LANG": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",
    "PYTHONIOENCODING": "utf-8",
    "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def lab(endpoints: Path, model: str) -> Running:
    """A host that runs already, by the endpoints.json that the lab has written."""
    address = json.loads(endpoints.read_text(encoding="utf-8"))["http"]
    host, _, port = address.partition("//")[2].rstrip("/").partition(":")
    return Running("lab", host, int(port), TritonDialect(model), None)


async def _wait(server: Server, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    give_up = time.monotonic() + START_SECONDS
    while await http.get(HOST, port, server.ready_path) != 200:
        if process.poll() is not None or time.monotonic() > give_up:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-40:])
            raise SystemExit(f"bench: {server.name} does not answer (exit {process.poll()}):\n{tail}")
        await asyncio.sleep(0.05)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask it to stop; end it, and what it leaves behind, when it does not."""
    below = [one.pid for one in processes.tree(process.pid)]
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        for pid in below:
            if processes.read(pid):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _part(command: Sequence[str]) -> str:
    """Which part of the server a process is."""
    if "triton_python_backend_stub" not in command[0]:
        return "server"
    return "engine" if any(f"{MODEL}_stream" in word for word in command) else "front"
