"""Real llama.cpp, from the wheel that a deploy has built into the controller's store."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from llamacpp_backend.chat import ChatTemplate
from llamacpp_backend.engine.core import EngineLimits
from llamacpp_backend.engine.loop import Engine
from llamacpp_backend.engine.prompt_cache import CacheLimits
from llamacpp_backend.prompts import PromptEncoder

from tests.engine.asking import N_CTX, Asker

if TYPE_CHECKING:
    from llamacpp_backend.llama.model import Model as LlamaModel
    from llamacpp_backend.llama.runner import LlamaRunner

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "unit" / "backend" / "fakes"))  # Triton's utilities, for the whole backend
DEMO = ROOT / "files" / "demo_model"
STORE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "triton-llamacpp" / "wheels"
# What /proc/cpuinfo must show before a wheel of this CPU target may be loaded: it would end the process.
NEEDED_FLAG = {"x86-64-v2": "sse4_2", "x86-64-v3": "avx2", "x86-64-v4": "avx512f"}

Child = Callable[[str], subprocess.CompletedProcess[str]]
OpenRunner = Callable[..., "LlamaRunner"]
OpenAsker = Callable[..., Asker]


def usable_wheels() -> list[Path]:
    """The store's llama-cpp-python wheels that this machine can load, newest first; see roles/llama_cpp_python."""
    flags = Path("/proc/cpuinfo").read_text().split()
    glibc = tuple(map(int, platform.libc_ver()[1].split(".")))
    found = []
    for path in STORE.glob("*/manifest.json"):
        manifest: dict[str, Any] = json.loads(path.read_text())
        wanted = manifest["wanted"]
        fits = wanted["name"] == "llama-cpp-python" and tuple(map(int, manifest["glibc"].split("."))) <= glibc
        if fits and NEEDED_FLAG[wanted["cpu_target"]] in flags:
            found.append(path.parent / manifest["file"])
    return sorted(found, key=lambda wheel: wheel.stat().st_mtime, reverse=True)


@pytest.fixture(scope="session")
def wheel_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel, on sys.path."""
    wheels = usable_wheels()
    if not wheels:
        pytest.fail(f"no llama-cpp-python wheel in {STORE}: run `make scenario-default` first: it builds the wheel")
    directory = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(directory)
    sys.path.insert(0, str(directory))
    return directory


@pytest.fixture(scope="session")
def llama(wheel_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LlamaModel]]:
    """Loaded models: `demo`, and with random f16 weights `dense` (qwen3) and `hybrid` (qwen35, recurrent layers)."""
    from llamacpp_backend.llama.model import Model

    directory = tmp_path_factory.mktemp("models")
    paths = {"demo": DEMO / "demo.gguf"}
    for name, shape in (("dense", "tiny-dense"), ("hybrid", "tiny-qwen35")):
        paths[name] = directory / f"{name}.gguf"
        script = [sys.executable, str(ROOT / "tests" / "models" / "random_gguf.py"), "--seed", "5"]
        subprocess.run([*script, "--shape", shape, "--output", str(paths[name])], check=True)
    models = {name: Model(path, lambda _level, _line: None) for name, path in paths.items()}
    yield models
    for model in models.values():
        model.close()


@pytest.fixture
def open_runner(llama: dict[str, LlamaModel]) -> Iterator[OpenRunner]:
    """Opens contexts, closed after the test: name of the model, and what differs from 8 slots of 256 tokens."""
    from llamacpp_backend.llama.runner import ContextOptions, LlamaRunner

    opened: list[LlamaRunner] = []

    def open_one(name: str, **options: Any) -> LlamaRunner:
        runner = LlamaRunner(llama[name], ContextOptions(**{"n_ctx": 256, "n_slots": 8, "n_batch": 256, **options}))
        opened.append(runner)
        return runner

    yield open_one
    for runner in opened:
        runner.close()


@pytest.fixture(scope="module")
def open_asker(llama: dict[str, LlamaModel]) -> Iterator[OpenAsker]:
    """Opens engines, closed after the module: name of the model, `cache_bytes`, and what differs of the context."""
    from llamacpp_backend.llama.runner import ContextOptions, LlamaRunner

    with ExitStack() as opened:

        def open_one(name: str, cache_bytes: int = 64 * 2**20, checkpoint_every: int = 256, **options: Any) -> Asker:
            model = llama[name]
            runner = LlamaRunner(model, ContextOptions(**{"n_ctx": N_CTX, "n_slots": 8, "n_batch": 256, **options}))
            opened.callback(runner.close)
            errors: list[str] = []
            engine = Engine(runner, EngineLimits(64, CacheLimits(cache_bytes, checkpoint_every)), errors.append)
            opened.callback(engine.close)
            chat = ChatTemplate(model.chat_renderer(), model.control_strings())
            return Asker(PromptEncoder(model, chat, runner.n_ctx), engine, runner.n_ctx)

        yield open_one


@pytest.fixture(scope="session")
def child(wheel_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Child:
    """Runs Python code that may end its process in a process of its own."""
    paths = [str(wheel_directory), str(ROOT / "roles" / "llamacpp_backend" / "files" / "llamacpp")]
    directory = tmp_path_factory.mktemp("child")

    def run(code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            check=False,
            cwd=directory,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            text=True,
            timeout=60,
        )

    return run
