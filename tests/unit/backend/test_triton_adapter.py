"""The border to Triton, against a stand-in for `triton_python_backend_utils`: Triton's own module exists only inside
a process that Triton has started.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from llamacpp_backend import triton_adapter
from llamacpp_backend.errors import (
    BackendError,
    BadRequest,
    Cancelled,
    EngineFailure,
    LoadError,
    Unavailable,
)
from llamacpp_backend.generator import Summary
from llamacpp_backend.triton_adapter import TritonReply, read_request

ERRORS = [BadRequest("wrong: é"), Unavailable("full"), Cancelled("gone"), EngineFailure("broke")]
CODES = ["INVALID_ARG", "UNAVAILABLE", "CANCELLED", "INTERNAL"]


def values(response: Any) -> dict[str, Any]:
    """A response's tensors: bytes as text, checked to have shape [1]."""
    found = {}
    for tensor in response.output_tensors():
        (value,) = tensor.as_numpy().tolist()
        found[tensor.name()] = value.decode() if isinstance(value, bytes) else value
    return found


@pytest.mark.parametrize("kind", ["engine", "front"])
def test_configuration(kind: str) -> None:
    config = pb_utils.ModelConfig(kind)
    assert triton_adapter.complete_config(config) is config
    inputs = {spec["name"]: spec for spec in config.inputs}
    outputs = {spec["name"]: spec for spec in config.outputs}
    assert all(spec["optional"] for spec in config.inputs)
    assert config.max_batch_size == 0
    assert config.policy == {"decoupled": kind == "engine"}
    assert ("stream" in inputs) == (kind == "engine")
    assert inputs["stop"]["dims"] == [-1]
    assert inputs["seed"]["data_type"] == "TYPE_UINT64"
    assert {spec["data_type"] for name, spec in outputs.items() if name.endswith("_tokens")} == {"TYPE_INT32"}


@pytest.mark.parametrize("kind", [None, "Engine", ""])
def test_unknown_kind(kind: str | None) -> None:
    with pytest.raises(LoadError, match=r"parameter kind is .*; allowed are engine and front"):
        triton_adapter.complete_config(pb_utils.ModelConfig(kind))


def test_place() -> None:
    args = {
        "model_config": json.dumps({"parameters": {"kind": {"string_value": "front"}}}),
        "model_name": "demo",
        "model_repository": "/models/demo",
        "model_version": "3",
    }
    place = triton_adapter.read_place(args)
    assert (place.kind, place.model_name, place.version_dir) == ("front", "demo", Path("/models/demo/3"))


def test_request_is_decoded() -> None:
    request = pb_utils.Request(
        {"prompt": ["é".encode()], "max_tokens": [7], "stop": [b"a", b"b"], "stream": [True]}, {"top_k": 3}
    )
    raw = read_request(request)
    assert raw.inputs == {"prompt": "é", "max_tokens": 7, "stop": ["a", "b"], "stream": True}
    assert raw.inputs["stream"] is True
    assert raw.parameters == {"top_k": 3}


def test_request_without_parameters() -> None:
    assert read_request(pb_utils.Request({"prompt": [b"x"]}, "")).parameters == {}


@pytest.mark.parametrize("value", [[1, 2], [[1, 2]]])
def test_tensor_of_several_elements(value: list[Any]) -> None:
    with pytest.raises(BadRequest, match=r"max_tokens has 2 elements; allowed is shape \[1\]"):
        read_request(pb_utils.Request({"max_tokens": value}))


def test_tensor_without_elements() -> None:
    request = pb_utils.Request()
    request.inputs().append(pb_utils.Tensor("prompt", np.array([], dtype=np.object_)))
    with pytest.raises(BadRequest, match="prompt has 0 elements"):
        read_request(request)


@pytest.mark.parametrize("text", ["{", "[1]", "7", "null", "[" * 100_000])
def test_parameters_that_cannot_be_read(text: str) -> None:
    with pytest.raises(BadRequest, match="the request's parameters can't be read"):
        read_request(pb_utils.Request({}, text))


def test_parameters_that_are_not_utf8() -> None:
    class Undecodable(pb_utils.Request):  # type: ignore[misc]
        def parameters(self) -> str:
            return b'{"stop": "\xff"}'.decode()

    with pytest.raises(BadRequest, match=r"the request's parameters are not UTF-8: .* 0xff in position 10"):
        read_request(Undecodable())


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"\xff", "byte 0xff at position 0"),
        (b"abc\x80", "byte 0x80 at position 3"),
        ("你".encode()[:2], "byte 0xe4 at position 0"),
        (b"ab\xed\xa0\x80", "byte 0xed at position 2"),
    ],
)
def test_bytes_that_are_not_utf8(data: bytes, place: str) -> None:
    for inputs, name in (({"prompt": [data]}, "prompt"), ({"prompt": [b"x"], "stop": [b"ok", data]}, "stop")):
        with pytest.raises(BadRequest, match=re.escape(f"{name} is not UTF-8: {place}; text must be UTF-8")):
            read_request(pb_utils.Request(inputs))


@pytest.mark.parametrize(("error", "code"), list(zip(ERRORS, CODES, strict=True)), ids=CODES)
def test_error_codes(error: BackendError, code: str) -> None:
    request = pb_utils.Request()
    TritonReply(request).fail(error)
    (response,) = request.sender.responses
    assert (response.error().code(), response.error().message()) == (code, str(error))
    assert request.sender.finals == 1


def test_whole_answer_is_one_response() -> None:
    request = pb_utils.Request()
    reply = TritonReply(request)
    for piece in ("人工", "智能"):
        reply.piece(piece)
    assert request.sender.responses == []
    reply.finish(Summary("stop", 5, 3))
    (response,) = request.sender.responses
    assert values(response) == {
        "generated_text": "人工智能",
        "text_output": "人工智能",
        "finish_reason": "stop",
        "prompt_tokens": 5,
        "completion_tokens": 3,
    }
    assert {tensor.as_numpy().dtype for tensor in response.output_tensors()} == {np.dtype("O"), np.dtype("int32")}
    assert request.sender.finals == 1


def test_stream_is_pieces_then_counts() -> None:
    request = pb_utils.Request()
    reply = TritonReply(request)
    reply.stream = True
    reply.piece("a")
    reply.piece("b")
    reply.finish(Summary("length", 1, 2))
    texts = [values(response)["text_output"] for response in request.sender.responses]
    assert texts == ["a", "b", ""]
    assert ["finish_reason" in values(response) for response in request.sender.responses] == [False, False, True]
    assert request.sender.finals == 1


def test_final_flag_once_whatever_comes() -> None:
    request = pb_utils.Request()
    reply = TritonReply(request)
    reply.finish(Summary("stop", 1, 1))
    reply.fail(EngineFailure("late"))
    reply.finish(Summary("stop", 1, 1))
    assert (request.sender.finals, len(request.sender.responses)) == (1, 1)


def test_triton_is_not_asked_about_an_answered_request() -> None:
    request = pb_utils.Request()
    request.sender.cancelled = True
    reply = TritonReply(request)
    assert reply.client_gone()
    reply.finish(Summary("stop", 1, 1))
    assert not reply.client_gone()


@pytest.mark.parametrize(
    ("level", "written"), [("error", "error"), ("warning", "warning"), ("info", "info"), ("debug", "verbose")]
)
def test_log_levels(level: str, written: str) -> None:
    pb_utils.Logger.lines.clear()
    triton_adapter.log(level, "line")
    assert pb_utils.Logger.lines == [(written, "line")]
