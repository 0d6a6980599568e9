"""The border to Triton, against a stand-in for `triton_python_backend_utils`: Triton's own module exists only inside
a process that Triton has started.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from llamacpp_backend import contract, triton_adapter
from llamacpp_backend.errors import (
    BackendError,
    BadRequest,
    Cancelled,
    EngineFailure,
    LoadError,
    Unavailable,
    from_code,
)
from llamacpp_backend.generator import Summary
from llamacpp_backend.triton_adapter import EngineCall, EngineReply, FrontReply, read_request

ERRORS = [BadRequest("wrong: é"), Unavailable("full"), Cancelled("gone"), EngineFailure("broke")]
CODES = ["INVALID_ARG", "UNAVAILABLE", "CANCELLED", "INTERNAL"]


@pytest.fixture
def called() -> Iterator[list[Any]]:
    """Calls inside the server; a test sets what they answer by `InferenceRequest.answer`."""
    calls: list[Any] = []
    yield calls
    if hasattr(pb_utils.InferenceRequest, "answer"):
        del pb_utils.InferenceRequest.answer


def answer_with(calls: list[Any], answer: Callable[[], list[Any]]) -> None:
    def note(call: Any) -> list[Any]:
        calls.append(call)
        return answer()

    pb_utils.InferenceRequest.answer = note


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
    assert ("stream" in inputs) == ("private_status" in outputs) == (kind == "engine")
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
    assert raw.inputs == {"prompt": "é".encode(), "max_tokens": 7, "stop": [b"a", b"b"], "stream": True}
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


@pytest.mark.parametrize("text", ["{", "[1]", "7", "null"])
def test_parameters_that_cannot_be_read(text: str) -> None:
    with pytest.raises(BadRequest, match="the request's parameters can't be read"):
        read_request(pb_utils.Request({}, text))
    with pytest.raises(BadRequest, match="the request's parameters can't be read"):
        read_request(pb_utils.Request({}, {contract.PRIVATE_PARAMETERS: text}))


def test_parameters_that_are_not_utf8() -> None:
    class Undecodable(pb_utils.Request):  # type: ignore[misc]
        def parameters(self) -> str:
            return b'{"stop": "\xff"}'.decode()

    with pytest.raises(BadRequest, match=r"the request's parameters are not UTF-8: .* 0xff in position 10"):
        read_request(Undecodable())


def test_private_parameters_that_are_no_text() -> None:
    with pytest.raises(BadRequest, match="the request's parameters can't be read"):
        read_request(pb_utils.Request({}, {contract.PRIVATE_PARAMETERS: 7}))


def test_a_client_cannot_hide_a_key_in_the_handed_on_parameters(called: list[Any]) -> None:
    handed_on = json.dumps({contract.PRIVATE_KEY: "forged"})
    parameters = {contract.PRIVATE_KEY: "front's", contract.PRIVATE_PARAMETERS: handed_on}
    assert read_request(pb_utils.Request({}, parameters)).key == "front's"


@pytest.mark.parametrize(("error", "code"), list(zip(ERRORS, CODES, strict=True)), ids=CODES)
@pytest.mark.parametrize("reply_class", [EngineReply, FrontReply])
def test_error_codes(reply_class: Any, error: BackendError, code: str) -> None:
    request = pb_utils.Request()
    reply_class(request).fail(error)
    (response,) = request.sender.responses
    assert (response.error().code(), response.error().message()) == (code, str(error))
    assert request.sender.finals == 1


def test_whole_answer_is_one_response() -> None:
    request = pb_utils.Request()
    reply = EngineReply(request)
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
    reply = EngineReply(request)
    reply.stream = True
    reply.piece("a")
    reply.piece("b")
    reply.finish(Summary("length", 1, 2))
    texts = [values(response)["text_output"] for response in request.sender.responses]
    assert texts == ["a", "b", ""]
    assert ["finish_reason" in values(response) for response in request.sender.responses] == [False, False, True]
    assert request.sender.finals == 1


@pytest.mark.parametrize("private", [False, True])
def test_final_flag_once_whatever_comes(private: bool) -> None:
    request = pb_utils.Request()
    reply = EngineReply(request)
    reply.private = private
    reply.finish(Summary("stop", 1, 1))
    reply.fail(EngineFailure("late"))
    reply.finish(Summary("stop", 1, 1))
    reply.end()
    assert (request.sender.finals, len(request.sender.responses)) == (1, 1)


def test_end_without_a_response() -> None:
    request = pb_utils.Request()
    EngineReply(request).end()
    assert (request.sender.finals, request.sender.responses) == (1, [])


@pytest.mark.parametrize("error", ERRORS, ids=CODES)
def test_error_crosses_from_engine_to_front_as_what_it_was(called: list[Any], error: BackendError) -> None:
    request = pb_utils.Request()
    reply = EngineReply(request)
    reply.private = True
    reply.fail(error)
    assert not request.sender.responses[0].has_error(), "Triton would turn it into INTERNAL"
    answer_with(called, lambda: request.sender.responses)
    with pytest.raises(type(error)) as caught:
        EngineCall("demo_stream").ask([], {}, "key")
    assert type(caught.value) is type(error)
    assert str(caught.value) == str(error)


def test_unknown_code_is_an_engine_failure() -> None:
    assert type(from_code("NEW", "x")) is EngineFailure


def test_parameters_cross_with_fractions(called: list[Any]) -> None:
    """The stand-in refuses a fraction among a call's parameters, as Triton does."""
    answer_with(called, lambda: [pb_utils.InferenceResponse([pb_utils.Tensor("generated_text", [b"x"])])])
    given = {"temperature": 0.7, "max_tokens": 5, "stop": "你", "top_p": 1e-3}
    tensor = pb_utils.Tensor("prompt", np.array([b"x"], dtype=np.object_))
    EngineCall("demo_stream").ask([tensor], given, "secret")
    (call,) = called
    assert (call.model_name, call.inputs) == ("demo_stream", [tensor])
    assert set(call.requested_output_names) == {spec.name for spec in contract.ENGINE_OUTPUTS}
    raw = read_request(pb_utils.Request({"prompt": [b"x"]}, call.parameters))
    assert raw.key == "secret"
    assert {name: raw.parameters[name] for name in given} == given
    assert contract.PRIVATE_PARAMETERS not in raw.parameters


def test_answer_of_several_responses_is_gathered(called: list[Any]) -> None:
    one, two = pb_utils.Tensor("generated_text", [b"x"]), pb_utils.Tensor("finish_reason", [b"stop"])
    answer_with(called, lambda: [pb_utils.InferenceResponse([one]), pb_utils.InferenceResponse([two])])
    assert EngineCall("demo_stream").ask([], {}, "k") == [one, two]


def test_engine_that_is_not_there(called: list[Any]) -> None:
    def refuse() -> list[Any]:
        raise pb_utils.TritonModelException("model is not ready")

    answer_with(called, refuse)
    with pytest.raises(Unavailable, match="model 'demo_stream' can't be called: model is not ready"):
        EngineCall("demo_stream").ask([], {}, "k")


def test_error_of_the_called_model(called: list[Any]) -> None:
    answer_with(called, lambda: [pb_utils.InferenceResponse(error=pb_utils.TritonError("it died"))])
    with pytest.raises(EngineFailure, match="it died"):
        EngineCall("demo_stream").ask([], {}, "k")


def test_no_answer_at_all(called: list[Any]) -> None:
    answer_with(called, lambda: [pb_utils.InferenceResponse()])
    with pytest.raises(EngineFailure, match="model 'demo_stream' gave no answer"):
        EngineCall("demo_stream").ask([], {}, "k")


def test_cancel_by_key(called: list[Any]) -> None:
    answer_with(called, lambda: [pb_utils.InferenceResponse()])
    EngineCall("demo_stream").cancel("secret")
    assert [call.parameters for call in called] == [{contract.PRIVATE_CANCEL: "secret"}]


def test_front_does_not_ask_about_an_answered_request() -> None:
    request = pb_utils.Request()
    request.sender.cancelled = True
    reply = FrontReply(request)
    assert reply.client_gone()
    reply.answer([])
    assert not reply.client_gone()


@pytest.mark.parametrize(
    ("level", "written"), [("error", "error"), ("warning", "warning"), ("info", "info"), ("debug", "verbose")]
)
def test_log_levels(level: str, written: str) -> None:
    pb_utils.Logger.lines.clear()
    triton_adapter.log(level, "line")
    assert pb_utils.Logger.lines == [(written, "line")]
