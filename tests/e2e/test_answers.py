"""The demo model's answers, which it has learned by heart: weights, tokenizer, template and stop handling show here."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kserve
import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient

MODEL = "qwen_gguf"
ENGINE = "qwen_gguf_stream"


def text_input(client: Any, name: str, text: str) -> Any:
    tensor = client.InferInput(name, [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode()], dtype=np.object_))
    return tensor


def test_every_answer_by_prompt(endpoints: dict[str, Any], answers: dict[str, str]) -> None:
    wrong = {}
    for question, expected in answers.items():
        answer = kserve.infer(endpoints["http"], MODEL, question, max_tokens=1024)
        assert answer.status == 200, answer.body
        if answer.output("generated_text") != expected:
            wrong[question] = answer.output("generated_text")
        assert answer.output("finish_reason") == "stop"
    assert wrong == {}
    assert len(answers) >= 60


def test_every_answer_by_chat(endpoints: dict[str, Any], answers: dict[str, str]) -> None:
    import json

    for question, expected in answers.items():
        messages = json.dumps([{"role": "user", "content": question}])
        answer = kserve.infer(endpoints["http"], MODEL, messages, tensor="messages", max_tokens=1024)
        assert answer.status == 200, answer.body
        assert answer.output("text_output") == expected


def test_answers_at_once_are_the_answers_alone(endpoints: dict[str, Any], answers: dict[str, str]) -> None:
    def ask(question: str) -> str:
        answer = kserve.infer(endpoints["http"], MODEL, question, max_tokens=1024)
        return str(answer.output("generated_text"))

    with ThreadPoolExecutor(8) as pool:
        assert dict(zip(answers, pool.map(ask, answers), strict=True)) == answers


def test_tritonclient_http(endpoints: dict[str, Any], answers: dict[str, str]) -> None:
    question, expected = next(iter(answers.items()))
    with httpclient.InferenceServerClient(endpoints["http"].removeprefix("http://")) as client:
        result = client.infer(MODEL, [text_input(httpclient, "prompt", question)], parameters={"max_tokens": 1024})
        assert result.as_numpy("generated_text")[0].decode() == expected


def test_tritonclient_grpc(endpoints: dict[str, Any], answers: dict[str, str]) -> None:
    question, expected = next(iter(answers.items()))
    with grpcclient.InferenceServerClient(endpoints["grpc"]) as client:
        result = client.infer(MODEL, [text_input(grpcclient, "prompt", question)], parameters={"max_tokens": 1024})
        assert result.as_numpy("generated_text")[0].decode() == expected
        assert int(result.as_numpy("completion_tokens")[0]) > 0


def test_grpc_stream(endpoints: dict[str, Any], answers: dict[str, str]) -> None:
    responses: queue.Queue[Any] = queue.Queue()
    with grpcclient.InferenceServerClient(endpoints["grpc"]) as client:
        client.start_stream(lambda result, error: responses.put((result, error)))
        for question, expected in answers.items():
            client.async_stream_infer(
                ENGINE,
                [text_input(grpcclient, "text_input", question)],
                enable_empty_final_response=True,
                parameters={"max_tokens": 1024},
            )
            pieces = []
            while True:
                result, error = responses.get(timeout=60)
                assert error is None
                text = result.as_numpy("text_output")
                if text is not None:
                    pieces.append(text[0].decode("utf-8"))  # each piece is whole UTF-8 by itself
                if result.get_response().parameters["triton_final_response"].bool_param:
                    break
            assert "".join(pieces) == expected
        client.stop_stream()


def test_generate(endpoints: dict[str, Any], answers: dict[str, str]) -> None:
    question, expected = next(iter(answers.items()))
    for model in (MODEL, ENGINE):
        answer = kserve.call(
            f"{endpoints['http']}/v2/models/{model}/generate", {"text_input": question, "max_tokens": 1024}
        )
        assert answer.status == 200, answer.body
        assert answer.json()["text_output"] == expected


def test_generate_stream_by_both_names(endpoints: dict[str, Any], answers: dict[str, str]) -> None:
    question, expected = max(answers.items(), key=lambda pair: len(pair[1]))
    for model in (MODEL, ENGINE):
        events = list(kserve.stream(endpoints["http"], model, text_input=question, max_tokens=1024))
        assert "".join(event["text_output"] for event in events) == expected
        assert len(events) > 20, "the answer came in one piece instead of a stream"


def test_max_tokens_ends_with_length(endpoints: dict[str, Any], answers: dict[str, str]) -> None:
    question, expected = max(answers.items(), key=lambda pair: len(pair[1]))
    answer = kserve.infer(endpoints["http"], MODEL, question, max_tokens=5)
    assert answer.output("finish_reason") == "length"
    assert answer.output("completion_tokens") == 5
    assert expected.startswith(answer.output("generated_text"))


def test_a_stop_string_ends_the_answer_and_is_not_in_it(endpoints: dict[str, Any], answers: dict[str, str]) -> None:
    question, expected = next((q, a) for q, a in answers.items() if a.count(" ") > 6)
    stop = expected.split(" ")[4]
    answer = kserve.infer(endpoints["http"], MODEL, question, stop=stop, max_tokens=1024)
    assert answer.output("generated_text") == expected[: expected.index(stop)]
    assert answer.output("finish_reason") == "stop"
