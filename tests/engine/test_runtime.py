"""The guards before native calls, files that are no models, and another architecture."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from llamacpp_backend.errors import EngineFailure, LoadError
from llamacpp_backend.generator import generate
from llamacpp_backend.parameters import Sampling, parse_sampling

if TYPE_CHECKING:
    from llamacpp_backend.runtime import Model, Runtime

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "files" / "demo_model" / "demo.gguf"
GREEDY = parse_sampling({"temperature": 0.0}, {}, 64)

Child = Callable[[str], subprocess.CompletedProcess[str]]

LOAD = """
from pathlib import Path
from llamacpp_backend.errors import LoadError
from llamacpp_backend.runtime import Model
try:
    Model(Path({path!r}), lambda _level, _line: None)
except LoadError as error:
    print(error)
"""


@pytest.fixture
def small(runtime_module: ModuleType, model: Model) -> Iterator[Runtime]:
    """A context of 64 tokens in batches of 8."""
    runtime: Runtime = runtime_module.Runtime(model, n_ctx=64, n_batch=8, n_threads=1)
    yield runtime
    runtime.close()


def bad_files() -> dict[str, bytes | None]:
    demo = DEMO.read_bytes()
    return {
        "empty.gguf": b"",
        "page.gguf": b"<!DOCTYPE html>\n<html><body>404 Not Found</body></html>\n",
        "half.gguf": demo[: len(demo) // 2],
        "header.gguf": demo[:64],
        "eight.gguf": demo[:8],
        "version.gguf": b"GGUF\x01\x00\x00\x00" + demo[8:],
        "counts.gguf": demo[:8] + b"\xff" * 16 + demo[24:],
        "noise.gguf": demo[:24] + bytes(range(256)) * 64,
        "missing.gguf": None,
    }


@pytest.mark.parametrize("name", bad_files())
def test_file_that_is_no_model(child: Child, tmp_path: Path, name: str) -> None:
    """In a process of its own: llama.cpp reads some of these, and must not end Triton's."""
    path = tmp_path / name
    data = bad_files()[name]
    if data is not None:
        path.write_bytes(data)
    done = child(LOAD.format(path=str(path)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{path}: ")
    assert done.stdout.strip() != f"{path}: llama.cpp can't load it: it gave no reason"


def test_directory(child: Child, tmp_path: Path) -> None:
    done = child(LOAD.format(path=str(tmp_path)))
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}: can't be read: Is a directory\n")


def test_file_that_may_not_be_read_or_is_no_model_says_why(runtime_module: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "page.gguf"
    page.write_bytes(b"<html>")
    with pytest.raises(LoadError, match="begins with b'<htm'; a GGUF file begins with b'GGUF'"):
        runtime_module.check_file(page)
    page.write_bytes(b"GGUF\x07\x00\x00\x00")
    with pytest.raises(LoadError, match="has GGUF version 7; allowed are 2 and 3"):
        runtime_module.check_file(page)
    with pytest.raises(LoadError, match="can't be read: No such file or directory"):
        runtime_module.check_file(tmp_path / "none.gguf")


def test_model_loads_after_a_failed_load(runtime_module: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "half.gguf"
    path.write_bytes(DEMO.read_bytes()[:1_000_000])
    with pytest.raises(LoadError, match=r"half\.gguf: llama\.cpp can't load it: .+"):
        runtime_module.Model(path, lambda _level, _line: None)
    model = runtime_module.Model(DEMO, lambda _level, _line: None)
    assert model.architecture == "qwen3"
    model.close()
    model.close()  # again, and nothing is freed twice


@pytest.mark.parametrize(
    ("tokens", "position", "words"),
    [
        ([], 0, "a batch has 0 tokens; allowed are 1 to 8"),
        ([1] * 9, 0, "a batch has 9 tokens; allowed are 1 to 8"),
        ([1], 1, "do not follow 0"),
        ([1], -1, "do not follow 0"),
        ([-1], 0, "token -1 is not in the vocabulary"),
        ([10**6], 0, "token 1000000 is not in the vocabulary"),
        ([1, 2, 10**6], 0, "token 1000000 is not in the vocabulary"),
    ],
)
def test_decode_refuses(small: Runtime, tokens: list[int], position: int, words: str) -> None:
    small.clear()
    with pytest.raises(EngineFailure, match=words):
        small.decode(tokens, position)
    small.clear()
    small.decode([1, 2], 0)


def test_decode_refuses_more_than_the_context_holds(small: Runtime) -> None:
    small.clear()
    for position in range(0, 64, 8):
        small.decode([1] * 8, position)
    with pytest.raises(EngineFailure, match="tokens 64 to 65 do not follow 64 in 64"):
        small.decode([1], 64)


def test_sampling_before_decoding_is_refused(small: Runtime) -> None:
    small.clear()
    source = small.sampler(GREEDY, [1])
    with pytest.raises(EngineFailure, match="nothing to sample from"):
        source.next()
    small.decode([1], 0)
    assert 0 <= source.next() < small.vocabulary_size
    source.close()
    source.close()  # again, and nothing is freed twice
    small.clear()
    with pytest.raises(EngineFailure):
        source.next()


def test_closed_sampler_is_refused(small: Runtime) -> None:
    """On its own: a closed chain is a null pointer to native code."""
    small.clear()
    small.decode([1], 0)
    source = small.sampler(GREEDY, [1])
    source.close()
    with pytest.raises(EngineFailure):
        source.next()


def test_penalties_see_the_prompt(small: Runtime) -> None:
    small.clear()
    small.decode([1, 2, 3], 0)

    def choice(sampling: Sampling, prompt: list[int]) -> int:
        with closing(small.sampler(sampling, prompt)) as source:
            return source.next()

    likeliest = choice(GREEDY, [])
    penalized = parse_sampling({"temperature": 0.0, "frequency_penalty": 2.0}, {}, 64)
    assert choice(penalized, []) == likeliest
    assert choice(penalized, [likeliest] * 40) != likeliest


def test_closed_context_is_refused(runtime_module: ModuleType, model: Model) -> None:
    runtime = runtime_module.Runtime(model, n_ctx=64, n_batch=8, n_threads=1)
    source = runtime.sampler(GREEDY, [1])
    runtime.close()
    runtime.close()
    refused: list[Callable[[], Any]] = [
        runtime.clear,
        lambda: runtime.decode([1], 0),
        source.next,
        lambda: generate(runtime, [1], GREEDY, print, lambda: False),
    ]
    for call in refused:
        with pytest.raises(EngineFailure):
            call()
    source.close()


@pytest.mark.parametrize("token", [-1, 10**6, 2**31 - 1])
def test_tokens_beyond_the_vocabulary(small: Runtime, token: int) -> None:
    with pytest.raises(EngineFailure, match="is not in the vocabulary"):
        small.token_bytes(token)
    with pytest.raises(EngineFailure, match="is not in the vocabulary"):
        small.is_end(token)


def test_every_token_has_its_bytes(model: Model) -> None:
    control = {model.tokenize(text, add_special=False, parse_special=True)[0] for text in model.control_strings()}
    assert control
    for token in range(model.n_vocab):
        assert bool(model.token_bytes(token)) != (token in control)


@pytest.mark.parametrize("text", ["", "\0", "a\0b", "😊" * 1000, "\ufffd", "x" * 100_000, "\u202e\u0000é"])
def test_text_survives_tokens(model: Model, text: str) -> None:
    tokens = model.tokenize(text, add_special=False, parse_special=False)
    assert b"".join(map(model.token_bytes, tokens)).decode() == text


def test_size_of_the_cache(model: Model) -> None:
    layers, heads = (int(model.metadata(f"qwen3.{key}") or 0) for key in ("block_count", "attention.head_count_kv"))
    sizes = sum(int(model.metadata(f"qwen3.attention.{key}_length") or 0) for key in ("key", "value"))
    assert model.kv_bytes_per_token() == layers * heads * sizes * 2 > 0
    assert model.metadata("no.such.key") is None


def test_log_bridge_joins_pieces_and_keeps_errors(runtime_module: ModuleType) -> None:
    lines: list[tuple[str, str]] = []
    bridge = runtime_module.LogBridge(lambda level, line: lines.append((level, line)))
    for level, text in [
        (2, b"load"),
        (5, b"ing ..."),
        (5, b"\n"),
        (4, b"no \xff\n"),
        (3, b"cut"),
        (1, b"next\n"),
        (2, b"\n"),
    ]:
        bridge.write(level, text)
    assert lines == [("info", "loading ..."), ("error", "no \ufffd"), ("warning", "cut"), ("debug", "next")]
    assert list(bridge.errors) == ["no \ufffd"]


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights in the shape of a qwen35, which has recurrent layers."""
    path = tmp_path_factory.mktemp("hybrid") / "hybrid.gguf"
    script = ROOT / "tests" / "models" / "random_gguf.py"
    command = [sys.executable, str(script), "--shape", "tiny-qwen35", "--output", str(path), "--seed", "5"]
    subprocess.run(command, check=True)
    return path


def test_hybrid_architecture(runtime_module: ModuleType, hybrid: Path) -> None:
    model = runtime_module.Model(hybrid, lambda _level, _line: None)
    runtime = runtime_module.Runtime(model, n_ctx=256, n_batch=16, n_threads=1)
    try:
        assert model.architecture == "qwen35"
        runtime.warm_up()
        prompt = model.tokenize("An answer without any sense, " * 3, add_special=True, parse_special=False)
        assert len(prompt) > 16

        def text(seed: int | None, temperature: float) -> str:
            options = {"temperature": temperature, "max_tokens": 32, "stop": []}
            given = options if seed is None else {**options, "seed": seed}
            pieces: list[str] = []
            generate(runtime, prompt, parse_sampling(given, {}, 256), pieces.append, lambda: False)
            return "".join(pieces)

        assert text(None, 0.0) == text(None, 0.0) != ""
        assert text(1, 1.0) == text(1, 1.0)
        assert len({text(seed, 2.0) for seed in range(4)}) > 1
    finally:
        runtime.close()
        model.close()
