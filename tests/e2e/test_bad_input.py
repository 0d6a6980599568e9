"""What a client may send wrong: each is refused with a message that helps, and the next request works."""

from __future__ import annotations

import json
from typing import Any

import kserve
import pytest

MODEL = "qwen_gguf"
LONG = "word " * 4000

# (id, inputs, parameters, what the message must hold)
REFUSED: list[tuple[str, list[dict[str, Any]], dict[str, Any], list[str]]] = [
    ("empty", [kserve.text_tensor("prompt", "")], {}, ["prompt", "empty"]),
    ("too_long", [kserve.text_tensor("prompt", LONG)], {}, ["2048"]),
    ("nothing", [], {}, ["prompt", "text_input", "messages"]),
    (
        "both",
        [kserve.text_tensor("prompt", "a"), kserve.text_tensor("text_input", "b")],
        {},
        ["prompt", "text_input"],
    ),
    ("bad_json", [kserve.text_tensor("messages", "{")], {}, ["messages"]),
    ("bad_role", [kserve.text_tensor("messages", json.dumps([{"role": "x", "content": "a"}]))], {}, ["role"]),
    ("unknown", [kserve.text_tensor("prompt", "a")], {"max_token": 5}, ["max_token", "max_tokens"]),
    ("zero", [kserve.text_tensor("prompt", "a")], {"max_tokens": 0}, ["max_tokens", "0", "2048"]),
    ("huge", [kserve.text_tensor("prompt", "a")], {"max_tokens": 10**9}, ["max_tokens", "1000000000", "2048"]),
    ("words", [kserve.text_tensor("prompt", "a")], {"max_tokens": "many"}, ["max_tokens", "many"]),
    ("nan", [kserve.text_tensor("prompt", "a")], {"temperature": "NaN"}, ["temperature"]),
    ("negative", [kserve.text_tensor("prompt", "a")], {"temperature": -1.0}, ["temperature", "-1"]),
    ("top_p", [kserve.text_tensor("prompt", "a")], {"top_p": 1.5}, ["top_p", "1.5"]),
    (
        "nan_tensor",
        [
            kserve.text_tensor("prompt", "a"),
            {"name": "max_tokens", "shape": [1], "datatype": "INT32", "data": [-5]},
        ],
        {},
        ["max_tokens", "-5"],
    ),
    ("shape", [{"name": "prompt", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]}], {}, ["prompt"]),
    ("type", [{"name": "prompt", "shape": [1], "datatype": "INT32", "data": [1]}], {}, ["prompt"]),
    ("no_input", [kserve.text_tensor("promt", "a")], {}, ["promt"]),
]


def works(endpoints: dict[str, Any], answers: dict[str, str]) -> bool:
    question, expected = next(iter(answers.items()))
    answer = kserve.infer(endpoints["http"], MODEL, question, max_tokens=1024)
    return answer.status == 200 and answer.output("generated_text") == expected


@pytest.fixture(autouse=True)
def _the_stub_lives_and_answers(endpoints: dict[str, Any], answers: dict[str, str], host: Any) -> Any:
    """After each refused request the same processes serve the next one."""
    processes = ["pgrep", "-u", "triton", "-f", "python_backend_stub"]
    before = host.run(processes).stdout
    assert before.strip()
    yield
    assert works(endpoints, answers)
    assert host.run(processes).stdout == before


@pytest.mark.parametrize(
    ("inputs", "parameters", "words"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_infer(
    endpoints: dict[str, Any],
    inputs: list[dict[str, Any]],
    parameters: dict[str, Any],
    words: list[str],
) -> None:
    url = f"{endpoints['http']}/v2/models/{MODEL}/infer"
    answer = kserve.call(url, {"inputs": inputs, "parameters": parameters})
    assert 400 <= answer.status < 500, answer.body
    for word in words:
        assert word in answer.error, answer.error


@pytest.mark.parametrize("route", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"text_input": ""}, ["text_input", "empty"]),
        ({"text_input": LONG}, ["2048"]),
        ({"text_input": "a", "max_tokens": 0}, ["max_tokens", "2048"]),
        ({"text_input": "a", "max_token": 5}, ["max_token"]),
        ({"text_input": "a", "temperature": -1}, ["temperature", "-1"]),
    ],
)
def test_generate(endpoints: dict[str, Any], route: str, members: dict[str, Any], words: list[str]) -> None:
    answer = kserve.call(f"{endpoints['http']}/v2/models/{MODEL}/{route}", members)
    text = answer.body.decode()
    assert 400 <= answer.status < 500, text
    for word in words:
        assert word in text


@pytest.mark.parametrize("route", ["generate", "generate_stream"])
def test_words_for_a_number_in_generate(endpoints: dict[str, Any], route: str) -> None:
    """Triton itself reads members that name an input, and answers 500 for a JSON type that does not fit."""
    members = {"text_input": "a", "temperature": "NaN"}
    answer = kserve.call(f"{endpoints['http']}/v2/models/{MODEL}/{route}", members)
    assert answer.status in {400, 500}
    assert "JSON non-number" in answer.error


def test_invalid_utf8(endpoints: dict[str, Any]) -> None:
    """Binary tensors carry any bytes: a length, then the text."""
    header = json.dumps(
        {
            "inputs": [
                {
                    "name": "prompt",
                    "shape": [1],
                    "datatype": "BYTES",
                    "parameters": {"binary_data_size": 6},
                }
            ]
        }
    ).encode()
    answer = kserve.call(
        f"{endpoints['http']}/v2/models/{MODEL}/infer",
        header + b"\x02\x00\x00\x00\xff\xfe",
        {"Inference-Header-Content-Length": str(len(header))},
    )
    assert 400 <= answer.status < 500
    assert "UTF-8" in answer.error


def test_nan_as_tensor_over_grpc(endpoints: dict[str, Any]) -> None:
    import numpy as np
    import tritonclient.grpc as grpcclient
    from tritonclient.utils import InferenceServerException

    prompt = grpcclient.InferInput("prompt", [1], "BYTES")
    prompt.set_data_from_numpy(np.array([b"a"], dtype=np.object_))
    for value in (float("nan"), float("inf"), -0.5):
        temperature = grpcclient.InferInput("temperature", [1], "FP32")
        temperature.set_data_from_numpy(np.array([value], dtype=np.float32))
        with grpcclient.InferenceServerClient(endpoints["grpc"]) as client:
            with pytest.raises(InferenceServerException, match="temperature") as refused:
                client.infer(MODEL, [prompt, temperature])
            assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
