"""The whole backend on real llama.cpp, loaded as Triton loads it; of Triton only a stand-in for its utilities."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import triton_python_backend_utils as pb_utils
from llamacpp_backend import opening
from llamacpp_backend.errors import EngineFailure, LoadError
from llamacpp_backend.link import EngineClient
from llamacpp_backend.requests import RawRequest

ROOT = Path(__file__).resolve().parents[2]
KNOWN = json.loads((ROOT / "files" / "demo_model" / "answers.json").read_text(encoding="utf-8"))["answers"][1]

Open = Callable[..., Any]


def place(directory: Path, kind: str = "engine", **changes: Any) -> dict[str, str]:
    """Write a model version as the model_repository role does; returns the arguments of `initialize`."""
    version = directory / "1"
    version.mkdir()
    (version / "model.gguf").symlink_to(ROOT / "files" / "demo_model" / "demo.gguf")
    settings = {"schema": 1, "name": "demo", "version": 1, "revision": "0123456789ab", **changes}
    (version / "model.json").write_text(json.dumps(settings), encoding="utf-8")
    return {
        "model_config": json.dumps({"parameters": {"kind": {"string_value": kind}}}),
        "model_name": "demo_stream",
        "model_repository": str(directory),
        "model_version": "1",
    }


@pytest.fixture
def open_model(wheel_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Loads model.py and initializes it; finalizes at the end."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("TRITON_CPU_QUOTA_PERCENT", "100")
    pb_utils.Logger.lines.clear()
    opened = []

    def load(**changes: Any) -> Any:
        path = ROOT / "roles" / "llamacpp_backend" / "files" / "llamacpp" / "model.py"
        spec = importlib.util.spec_from_file_location("model", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        model = module.TritonPythonModel()
        model.initialize(place(tmp_path, **changes))
        opened.append(model)
        return model

    yield load
    for model in opened:
        model.finalize()


def answered(model: Any, *requests: Any) -> None:
    model.execute(list(requests))
    deadline = time.monotonic() + 20
    while not all(request.sender.finals for request in requests):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def text(request: Any) -> str:
    tensors = [tensor for response in request.sender.responses for tensor in response.output_tensors()]
    return "".join(tensor.as_numpy()[0].decode() for tensor in tensors if tensor.name() == "generated_text")


def test_requests(open_model: Open) -> None:
    model = open_model(engine={"n_ctx": 512}, defaults={"temperature": 0.0})
    question, wanted = KNOWN["question"].encode(), KNOWN["answer"]
    chat = json.dumps([{"role": "user", "content": KNOWN["question"]}]).encode()
    requests = [
        pb_utils.Request({"prompt": [question]}),
        pb_utils.Request({"text_input": [question], "stream": [False]}),
        pb_utils.Request({"messages": [chat]}, {"stream": False}),
    ]
    answered(model, *requests)
    assert [text(request) for request in requests] == [wanted] * 3
    counts = [len(request.sender.responses) for request in requests]
    assert counts[0] > 10
    assert counts[1:] == [1, 1]


def test_request_of_a_front(open_model: Open) -> None:
    open_model(defaults={"temperature": 0.0})
    raw = RawRequest({"prompt": KNOWN["question"]}, {"max_tokens": 512})
    answer = EngineClient("demo_stream", 1).ask(raw, lambda: False)
    assert (answer["text_output"], answer["finish_reason"]) == ([KNOWN["answer"]], ["stop"])


def test_load_line_says_what_was_computed(open_model: Open) -> None:
    open_model()
    (line,) = [line for level, line in pb_utils.Logger.lines if level == "info"]
    for part in (
        "architecture qwen3",
        "n_ctx 4096 for each of 4",
        "n_batch 512",
        "threads 1 (computed",
        "queue_size 64",
    ):
        assert part in line


def test_too_long_prompt_and_bad_options_are_the_clients_mistakes(open_model: Open) -> None:
    model = open_model(engine={"n_ctx": 64})
    requests = [
        pb_utils.Request({"prompt": [b"word " * 200]}),
        pb_utils.Request({"prompt": [b"x"]}, {"max_tokens": 65}),
        pb_utils.Request({"messages": [b'[{"role": "wizard", "content": "x"}]']}),
    ]
    answered(model, *requests)
    errors = [request.sender.responses[0].error() for request in requests]
    assert [error.code() for error in errors] == ["INVALID_ARG"] * 3
    assert "allowed are at most 63" in errors[0].message()


def test_unload_lets_accepted_requests_end(open_model: Open) -> None:
    model = open_model(engine={"n_ctx": 512}, defaults={"temperature": 0.0})
    requests = [pb_utils.Request({"prompt": [KNOWN["question"].encode()]}) for _ in range(3)]
    model.execute(requests)
    model.finalize()
    assert [text(request) for request in requests] == [KNOWN["answer"]] * 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine": {"n_ctx": 1_048_576}}, r"n_ctx 1048576 for n_parallel \d+ needs .* MiB of memory"),
        ({"engine": {"n_ctx": 0}, "defaults": {"max_tokens": 5000}}, r"defaults: max_tokens is 5000; .* \(n_ctx\)"),
    ],
)
def test_load_that_can_be_refused_before_llama_cpp_is(
    open_model: Open, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr(opening, "available_memory", lambda: 512 * 2**20)
    with pytest.raises(LoadError, match=words):
        open_model(**changes)


def test_failed_warm_up_frees_the_context_before_the_model(open_model: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    from llamacpp_backend.llama.model import Model
    from llamacpp_backend.llama.runner import LlamaRunner

    def fail(_runner: Any) -> None:
        raise EngineFailure("no warm-up")

    closed: list[str] = []
    for part in (LlamaRunner, Model):

        def note(opened: Any, close: Any = part.close, name: str = part.__name__) -> None:
            closed.append(name)
            close(opened)

        monkeypatch.setattr(part, "close", note)
    monkeypatch.setattr(LlamaRunner, "warm_up", fail)
    with pytest.raises(EngineFailure, match="no warm-up"):
        open_model()
    assert closed == ["LlamaRunner", "Model"]
