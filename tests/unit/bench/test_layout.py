"""What is served is what the roles deploy: flags, digests, the form of config.pbtxt and model.json."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from llamacpp_backend.settings import read_engine_settings, read_front_settings

from bench import recipe, triton
from bench.peers import llama_server, naive


def test_llama_server_has_the_wheels_flags_and_no_network() -> None:
    flags = llama_server.inputs()["cmake"]
    assert {"-DGGML_NATIVE=OFF", "-DGGML_AVX2=ON", "-DGGML_AVX512=OFF"} <= set(flags)
    assert {"-DLLAMA_OPENSSL=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"} <= set(flags)
    assert not any(flag.startswith("-DGGML") for flag in llama_server.FLAGS)


def test_other_flags_are_another_program(monkeypatch: pytest.MonkeyPatch) -> None:
    before = llama_server.path()
    facts, defaults = recipe._role("llama_cpp_python")

    def role(_name: str) -> Any:
        return facts, {**defaults, "llama_cpp_python_cpu_target": "x86-64-v2"}

    monkeypatch.setattr(recipe, "_role", role)
    assert llama_server.path() != before


def test_both_get_the_same_context() -> None:
    command = llama_server.command(Path("m.gguf"), 1, slots=8, n_ctx=512, threads=2, cache_mib=64)
    options = dict(itertools.pairwise(command))
    assert options["--ctx-size"] == "4096"  # llama-server's is for all slots together
    assert options["--parallel"] == "8"
    assert options["--threads"] == options["--threads-batch"] == "2"
    assert options["--cache-ram"] == "64"
    assert "--no-kv-unified" in command


@pytest.fixture
def no_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "tree", lambda: tmp_path / "tree")
    monkeypatch.setattr(triton, "venv", lambda: Path("/cache/venv"))


@pytest.mark.usefixtures("no_downloads")
def test_the_backend_takes_what_is_laid_out(tmp_path: Path) -> None:
    engine = {"n_ctx": 512, "n_parallel": 8, "n_threads": 2, "prompt_cache_mib": 64}
    repository, backends = triton.lay_out(
        tmp_path, "m", Path("/cache/m.gguf"), engine, {"temperature": 0.0, "stop": []}
    )
    settings = read_engine_settings(repository / "m_stream" / "1" / "model.json")
    assert settings.engine.n_parallel == 8
    assert read_front_settings(repository / "m" / "1" / "model.json") == "m_stream"
    assert (backends / "llamacpp" / "model.py").is_file()
    for unit, kind in (("m", "front"), ("m_stream", "engine")):
        config = (repository / unit / "config.pbtxt").read_text()
        assert f'key: "kind" value {{ string_value: "{kind}" }}' in config
        assert 'string_value: "/cache/venv"' in config
        assert "/run/triton" not in config


def test_the_naive_model_is_laid_out(tmp_path: Path) -> None:
    naive.lay_out(tmp_path / "m", Path("/cache/m.gguf"), 512, 2, Path("/cache/venv"))
    config = (tmp_path / "m" / "config.pbtxt").read_text()
    assert 'backend: "python"' in config
    assert 'key: "n_ctx" value { string_value: "512" }' in config
    assert json.dumps("/cache/venv") in config
    assert (tmp_path / "m" / "1" / "model.py").is_file()
