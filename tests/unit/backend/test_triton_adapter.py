"""The border to Triton, against a stand-in for `triton_python_backend_utils`: Triton's own module exists only inside
a process that Triton has started.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from llamacpp_backend import triton_adapter
from llamacpp_backend.engine.job import Summary, Timings
from llamacpp_backend.errors import (
    BackendError,
    BadRequest,
    Cancelled,
    EngineFailure,
    LoadError,
    Unavailable,
)
from llamacpp_backend.triton_adapter import TritonReply, read_request

ERRORS = [BadRequest("wrong: é"), Unavailable("full"), Cancelled("gone"), EngineFailure("broke")]
SUMMARY = Summary("stop", 5, 2, 3, 7, Timings(0.5, 1.0, 2.0, 1.5))
CODES = ["INVALID_ARG", "UNAVAILABLE", "CANCELLED", "INTERNAL"]


def values(response: Any) -> dict[str, list[Any]]:
    """A response's tensors, bytes as text."""
    return {
        tensor.name(): [item.decode() if isinstance(item, bytes) else item for item in tensor.as_numpy().tolist()]
        for tensor in response.output_tensors()
    }


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


def at_once(deliver: Callable[[], None]) -> None:
    deliver()


@pytest.mark.parametrize(("error", "code"), list(zip(ERRORS, CODES, strict=True)), ids=CODES)
def test_error_codes(error: BackendError, code: str) -> None:
    request = pb_utils.Request()
    TritonReply(request, at_once).fail(error)
    (response,) = request.sender.responses
    assert (response.error().code(), response.error().message()) == (code, str(error))
    assert request.sender.finals == 1


def test_whole_answer_is_one_response() -> None:
    request = pb_utils.Request()
    reply = TritonReply(request, at_once)
    for piece in ("人工", "智能"):
        reply.piece(0, piece, ())
    reply.keep_alive()
    assert request.sender.responses == []
    reply.finish([SUMMARY])
    (response,) = request.sender.responses
    found = values(response)
    assert json.loads(found.pop("details")[0])["seed"] == 7
    assert found == {
        "generated_text": ["人工智能"],
        "text_output": ["人工智能"],
        "finish_reason": ["stop"],
        "prompt_tokens": [5],
        "cached_tokens": [2],
        "completion_tokens": [3],
    }
    assert {tensor.as_numpy().dtype for tensor in response.output_tensors()} == {np.dtype("O"), np.dtype("int32")}
    assert request.sender.finals == 1


def test_only_the_outputs_that_are_asked_for_are_sent() -> None:
    request = pb_utils.Request(wanted=["text_output"])
    reply = TritonReply(request, at_once)
    reply.stream = True
    reply.piece(0, "a", ())
    reply.finish([SUMMARY])
    assert [values(response) for response in request.sender.responses] == [
        {"text_output": ["a"]},
        {"text_output": [""]},
    ]


def test_stream_is_pieces_then_how_they_ended() -> None:
    request = pb_utils.Request()
    reply = TritonReply(request, at_once)
    reply.stream = True
    reply.keep_alive()
    reply.piece(0, "a", ())
    reply.piece(1, "b", ())
    reply.finish([SUMMARY, SUMMARY])
    responses = [values(response) for response in request.sender.responses]
    assert [response["text_output"] for response in responses] == [[""], ["a"], ["b"], ["", ""]]
    assert [response.get("index") for response in responses] == [[0], [0], [1], None]
    assert ["finish_reason" in response for response in responses] == [False, False, False, True]
    assert request.sender.finals == 1


def test_final_flag_once_whatever_comes() -> None:
    request = pb_utils.Request()
    reply = TritonReply(request, at_once)
    reply.finish([SUMMARY])
    reply.fail(EngineFailure("late"))
    reply.finish([SUMMARY])
    assert (request.sender.finals, len(request.sender.responses)) == (1, 1)


def test_responses_are_made_by_whoever_delivers() -> None:
    request = pb_utils.Request()
    outbox: list[Callable[[], None]] = []
    reply = TritonReply(request, outbox.append)
    reply.stream = True
    reply.piece(0, "a", ())
    reply.finish([SUMMARY])
    assert request.sender.responses == []
    for deliver in outbox:
        deliver()
    assert [values(response)["text_output"] for response in request.sender.responses] == [["a"], [""]]


def test_client_that_has_cancelled_is_found_by_a_look() -> None:
    request = pb_utils.Request()
    reply = TritonReply(request, at_once)
    assert reply.look()
    request.sender.cancelled = True
    assert not reply.client_gone()
    assert not reply.look()
    assert reply.client_gone()


def test_triton_is_not_asked_about_an_answered_request() -> None:
    request = pb_utils.Request()
    reply = TritonReply(request, at_once)
    reply.finish([SUMMARY])
    request.sender.cancelled = True
    assert not reply.look()
    assert not reply.client_gone()


def test_answer_that_cannot_be_made_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    request = pb_utils.Request()
    reply = TritonReply(request, at_once)
    monkeypatch.setattr(triton_adapter, "_tensor", lambda _name, _values: 1 // 0)
    reply.finish([SUMMARY])
    (response,) = request.sender.responses
    assert (response.error().code(), request.sender.finals) == ("INTERNAL", 1)


def test_piece_that_cannot_be_made_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    request = pb_utils.Request()
    reply = TritonReply(request, at_once)
    reply.stream = True
    monkeypatch.setattr(triton_adapter, "_tensor", lambda _name, _values: 1 // 0)
    reply.piece(0, "a", ())
    assert reply.client_gone()


def test_client_that_cannot_be_told_counts_as_gone() -> None:
    request = pb_utils.Request()
    request.sender.broken = True
    reply = TritonReply(request, at_once)
    reply.stream = True
    reply.piece(0, "a", ())
    assert reply.client_gone()
    reply.fail(EngineFailure("x"))  # nobody hears it, and nothing is raised


@pytest.mark.parametrize(
    ("level", "written"), [("error", "error"), ("warning", "warning"), ("info", "info"), ("debug", "verbose")]
)
def test_log_levels(level: str, written: str) -> None:
    pb_utils.Logger.lines.clear()
    triton_adapter.log(level, "line")
    assert pb_utils.Logger.lines == [(written, "line")]
