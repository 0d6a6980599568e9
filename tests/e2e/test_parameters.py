"""Every parameter's refusal reaches the client by every way: HTTP infer, generate, generate_stream, gRPC, streams."""

from __future__ import annotations

import json
import queue
from typing import Any

import kserve
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from llamacpp_backend.parameters import PARAMETERS, SAMPLING_NAMES
from tritonclient.utils import InferenceServerException

MODEL = "qwen_gguf"
ENGINE = "qwen_gguf_stream"
NUMPY = {
    "TYPE_INT32": ("INT32", np.int32),
    "TYPE_UINT64": ("UINT64", np.uint64),
    "TYPE_FP32": ("FP32", np.float32),
    "TYPE_BOOL": ("BOOL", np.bool_),
    "TYPE_STRING": ("BYTES", np.object_),
}
TYPES = {item.name: item.data_type for item in PARAMETERS}

# (parameter, wrong value, what the message must hold beside the parameter's name)
REFUSED: list[tuple[str, Any, list[str]]] = [
    ("max_tokens", 0, ["0", "2048"]),
    ("min_tokens", -1, ["-1"]),
    ("temperature", -1.0, ["-1", "10"]),
    ("top_k", -2, ["-2", "1000000"]),
    ("top_p", 0.0, ["0.0", "1"]),
    ("min_p", 1.5, ["1.5", "1"]),
    ("typical_p", 0.0, ["0.0"]),
    ("top_n_sigma", 101.0, ["101", "100"]),
    ("repetition_penalty", 0.0, ["0.0", "10"]),
    ("presence_penalty", 2.5, ["2.5", "2"]),
    ("frequency_penalty", -2.5, ["-2.5", "-2"]),
    ("penalty_last_n", -2, ["-2"]),
    ("dry_multiplier", -1.0, ["-1"]),
    ("dry_base", 0.5, ["0.5"]),
    ("dry_allowed_length", -1, ["-1"]),
    ("dry_penalty_last_n", -2, ["-2"]),
    ("dry_sequence_breakers", "x" * 100, ["100", "40"]),
    ("xtc_probability", 1.5, ["1.5"]),
    ("xtc_threshold", -0.5, ["-0.5"]),
    ("mirostat", 3, ["3", "2"]),
    ("mirostat_tau", 0.0, ["0.0"]),
    ("mirostat_eta", 1.5, ["1.5"]),
    ("logit_bias", "{", ["JSON"]),
    ("seed", 2**32 - 1, ["4294967295", "4294967294"]),
    ("stop", "x" * 300, ["300", "256"]),
    ("n", 0, ["0"]),
    ("logprobs", 21, ["21", "20"]),
    ("json_schema", "{", ["JSON"]),
    ("grammar", 'root ::= "a"', ["allow_grammar"]),
    ("timeout_ms", -1, ["-1"]),
]
CASES = pytest.mark.parametrize(("name", "value", "words"), REFUSED, ids=[case[0] for case in REFUSED])
# Flags have no wrong value of their type.
FLAGS = {"ignore_eos", "cache_prompt"}


def check(message: str, name: str, words: list[str]) -> None:
    for word in (name, *words):
        assert word in message, message


def test_every_parameter_is_tried() -> None:
    assert {case[0] for case in REFUSED} | FLAGS == set(SAMPLING_NAMES)


@CASES
def test_infer(endpoints: dict[str, Any], name: str, value: Any, words: list[str]) -> None:
    answer = kserve.infer(endpoints["http"], MODEL, "a", **{name: value})
    assert answer.status == 400, answer.body
    check(answer.error, name, words)


@pytest.mark.parametrize("route", ["generate", "generate_stream"])
@CASES
def test_generate(endpoints: dict[str, Any], route: str, name: str, value: Any, words: list[str]) -> None:
    url = f"{endpoints['http']}/v2/models/{MODEL}/{route}"
    answer = kserve.call(url, {"text_input": "a", name: value})
    assert answer.status == 400, answer.body
    check(answer.body.decode(), name, words)  # a stream's is an event


def tensors(name: str, value: Any) -> list[Any]:
    prompt = grpcclient.InferInput("prompt", [1], "BYTES")
    prompt.set_data_from_numpy(np.array([b"a"], dtype=np.object_))
    kind, dtype = NUMPY[TYPES[name]]
    wrong = grpcclient.InferInput(name, [1], kind)
    wrong.set_data_from_numpy(np.array([value.encode() if isinstance(value, str) else value], dtype=dtype))
    return [prompt, wrong]


@CASES
def test_grpc(endpoints: dict[str, Any], name: str, value: Any, words: list[str]) -> None:
    with grpcclient.InferenceServerClient(endpoints["grpc"]) as client:
        with pytest.raises(InferenceServerException) as refused:
            client.infer(MODEL, tensors(name, value))
        assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
        check(refused.value.message(), name, words)


@CASES
def test_grpc_stream(endpoints: dict[str, Any], name: str, value: Any, words: list[str]) -> None:
    responses: queue.Queue[Any] = queue.Queue()
    with grpcclient.InferenceServerClient(endpoints["grpc"]) as client:
        client.start_stream(lambda result, error: responses.put((result, error)))
        client.async_stream_infer(ENGINE, tensors(name, value))
        _, error = responses.get(timeout=30)
        client.stop_stream()
    check(error.message(), name, words)


@pytest.mark.parametrize("name", ["temperature", "top_p", "mirostat_tau", "xtc_probability"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none(endpoints: dict[str, Any], name: str, value: float) -> None:
    with grpcclient.InferenceServerClient(endpoints["grpc"]) as client:
        with pytest.raises(InferenceServerException, match=name) as refused:
            client.infer(MODEL, tensors(name, value))
        assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"messages": '[{"role": "user", "content": "a"}]', "tools": "{"}, ["tools", "JSON"]),
        ({"messages": '[{"role": "user", "content": "a"}]', "chat_template_kwargs": "[]"}, ["chat_template_kwargs"]),
        ({"prompt": "a", "tools": "[]"}, ["tools", "messages"]),
        (
            {"messages": '[{"role": "user", "content": "a"}]', "chat_template_kwargs": json.dumps({"bos_token": "x"})},
            ["chat_template_kwargs", "bos_token"],
        ),
    ],
)
def test_chat_inputs(endpoints: dict[str, Any], inputs: dict[str, str], words: list[str]) -> None:
    body = {"inputs": [kserve.text_tensor(name, text) for name, text in inputs.items()]}
    answer = kserve.call(f"{endpoints['http']}/v2/models/{MODEL}/infer", body)
    assert answer.status == 400, answer.body
    for word in words:
        assert word in answer.error
