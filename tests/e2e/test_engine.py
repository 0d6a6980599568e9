"""The engine through the server: many at once, what is told about an answer, cancelling, constraints, metrics."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kserve
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as aioclient
from tritonclient.utils import InferenceServerException

MODEL = "qwen_gguf"
ENGINE = "qwen_gguf_stream"


def metrics(endpoints: dict[str, Any], prefix: str) -> dict[str, float]:
    """Samples whose name begins with `prefix`, by name and labels."""
    with urllib.request.urlopen(f"{endpoints['metrics']}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if line.startswith(prefix))
    return {name: float(value) for name, value in samples}


def wait_until(condition: Any, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not come true within {seconds} s"
        time.sleep(0.1)


def running(endpoints: dict[str, Any]) -> float:
    return sum(metrics(endpoints, "vllm:num_requests_running").values())


def test_sixteen_at_once_with_cancellations_in_between(endpoints: dict[str, Any], answers: dict[str, str]) -> None:
    known = list(answers.items())
    order = random.Random(7)
    stop = threading.Event()

    def ask(number: int) -> str | None:
        question, expected = known[number % len(known)]
        answer = kserve.infer(endpoints["http"], MODEL, question, max_tokens=1024)
        wrong = answer.status != 200 or answer.output("generated_text") != expected
        return f"{question}: {answer.body[:200]!r}" if wrong else None

    def come_and_go() -> None:
        """A client that starts streams and leaves in the middle."""
        while not stop.is_set():
            question, _ = order.choice(known)
            with grpcclient.InferenceServerClient(endpoints["grpc"]) as client:
                client.start_stream(lambda result, error: None)
                client.async_stream_infer(ENGINE, [text_input("prompt", question)], parameters={"max_tokens": 512})
                time.sleep(order.random() * 0.05)
                client.stop_stream(cancel_requests=True)

    leaver = threading.Thread(target=come_and_go)
    leaver.start()
    with ThreadPoolExecutor(16) as pool:
        wrong = [outcome for outcome in pool.map(ask, range(320)) if outcome]
    stop.set()
    leaver.join()
    assert (len(wrong), wrong[:3]) == (0, [])
    wait_until(lambda: running(endpoints) == 0)


def text_input(name: str, text: str) -> Any:
    tensor = grpcclient.InferInput(name, [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode()], dtype=np.object_))
    return tensor


def outputs(answer: kserve.Answer) -> dict[str, list[Any]]:
    assert answer.status == 200, answer.body
    return {tensor["name"]: tensor["data"] for tensor in answer.json()["outputs"]}


def test_several_answers_to_one_prompt(endpoints: dict[str, Any]) -> None:
    found = outputs(kserve.infer(endpoints["http"], MODEL, "hello", n=3, temperature=1.0, max_tokens=12, seed=5))
    assert len(found["generated_text"]) == len(found["finish_reason"]) == len(found["completion_tokens"]) == 3
    assert len(found["prompt_tokens"]) == 1
    seeds = [json.loads(text)["seed"] for text in found["details"]]
    assert len(set(seeds)) == 3


def test_same_seed_same_answer_and_a_drawn_one_is_reported(endpoints: dict[str, Any]) -> None:
    drawn = outputs(kserve.infer(endpoints["http"], MODEL, "hello", temperature=2.0, max_tokens=24, top_k=0, min_p=0.0))
    seed = json.loads(drawn["details"][0])["seed"]
    again = outputs(
        kserve.infer(endpoints["http"], MODEL, "hello", temperature=2.0, max_tokens=24, top_k=0, min_p=0.0, seed=seed)
    )
    assert again["generated_text"] == drawn["generated_text"]


def test_logprobs(endpoints: dict[str, Any], answers: dict[str, str]) -> None:
    question, expected = next(iter(answers.items()))
    found = outputs(kserve.infer(endpoints["http"], MODEL, question, logprobs=2, max_tokens=512))
    tokens = json.loads(found["logprobs"][0])
    assert b"".join(bytes(token["bytes"]) for token in tokens).decode() == expected
    assert all(token["logprob"] <= 0 and len(token["top_logprobs"]) == 2 for token in tokens)
    assert all(token["top_logprobs"][0]["id"] == token["id"] for token in tokens), "greedy takes the likeliest token"


def test_a_prompt_that_was_seen_is_not_computed_again(endpoints: dict[str, Any]) -> None:
    prompt = f"Question {time.time()}: " + "the same words again and again " * 30
    first, second = (outputs(kserve.infer(endpoints["http"], MODEL, prompt, max_tokens=8)) for _ in range(2))
    assert first["generated_text"] == second["generated_text"]
    (length,) = second["prompt_tokens"]
    assert first["cached_tokens"][0] < length / 2
    assert second["cached_tokens"] == [length - 1]
    off = outputs(kserve.infer(endpoints["http"], MODEL, prompt, max_tokens=8, cache_prompt=False))
    assert off["cached_tokens"] == [0]
    assert off["generated_text"] == first["generated_text"]


def test_json_schema(endpoints: dict[str, Any]) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    found = outputs(
        kserve.infer(endpoints["http"], MODEL, "Who?", json_schema=json.dumps(schema), max_tokens=200, stop="\n\n\n")
    )
    assert found["finish_reason"] == ["stop"]
    assert set(json.loads(found["generated_text"][0])) == {"name", "age"}


def test_deadline_ends_an_answer_with_what_there_is(endpoints: dict[str, Any]) -> None:
    found = outputs(
        kserve.infer(endpoints["http"], MODEL, "hello", timeout_ms=250, ignore_eos=True, max_tokens=2000, stop="\x01")
    )
    assert found["finish_reason"] == ["deadline"]
    assert found["completion_tokens"][0] > 0


def test_cancelled_stream_frees_its_place(endpoints: dict[str, Any]) -> None:
    begun = threading.Event()
    with grpcclient.InferenceServerClient(endpoints["grpc"]) as client:
        client.start_stream(lambda result, error: begun.set())
        client.async_stream_infer(
            ENGINE, [text_input("prompt", "hello")], parameters={"max_tokens": 2000, "ignore_eos": True, "stop": "\x01"}
        )
        assert begun.wait(10)
        client.stop_stream(cancel_requests=True)
        wait_until(lambda: running(endpoints) == 0, 3)


def test_cancelled_unary_call_frees_its_place(endpoints: dict[str, Any]) -> None:
    with grpcclient.InferenceServerClient(endpoints["grpc"]) as client:
        with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
            client.infer(
                MODEL,
                [text_input("prompt", "hello")],
                parameters={"max_tokens": 2000, "ignore_eos": True, "stop": "\x01"},
                client_timeout=0.3,
            )
        wait_until(lambda: running(endpoints) == 0, 3)


def test_aio_streams_at_once(endpoints: dict[str, Any], answers: dict[str, str]) -> None:
    async def ask(question: str) -> str:
        async def requests() -> Any:
            yield {
                "model_name": ENGINE,
                "inputs": [text_input("text_input", question)],
                "parameters": {"max_tokens": 512},
            }

        pieces = []
        async with aioclient.InferenceServerClient(endpoints["grpc"]) as client:
            async for result, error in client.stream_infer(requests()):
                assert error is None
                text = result.as_numpy("text_output")
                pieces += [piece.decode() for piece in ([] if text is None else text)]
        return "".join(pieces)

    async def all_of_them(questions: list[str]) -> list[str]:
        return list(await asyncio.gather(*map(ask, questions)))

    questions = list(answers)[:8]
    assert asyncio.run(all_of_them(questions)) == [answers[question] for question in questions]


def test_metrics_count_what_was_asked(endpoints: dict[str, Any]) -> None:
    def count(name: str) -> float:
        return sum(metrics(endpoints, f"vllm:{name}").values())

    names = ("prompt_tokens_total", "generation_tokens_total", "time_to_first_token_seconds_count")
    time.sleep(2.5)  # what was asked before is exported within a second
    before = [count(name) for name in names]
    found = outputs(kserve.infer(endpoints["http"], MODEL, "count me", max_tokens=5, ignore_eos=True))
    asked = [found["prompt_tokens"][0], 5, 1]
    wait_until(lambda: [count(name) - then for name, then in zip(names, before, strict=True)] == asked)
    assert count("e2e_request_latency_seconds_bucket") > 0
    for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert metrics(endpoints, f"vllm:{gauge}"), gauge
