"""From pieces and summaries to outputs: several answers, token by token log probabilities, details as JSON."""

from __future__ import annotations

import json

from llamacpp_backend import contract
from llamacpp_backend.answers import Collector, final_outputs, piece_outputs
from llamacpp_backend.engine.job import Summary, Timings, TokenInfo

TIMINGS = Timings(0.1234567, 2.0, None, 3.5)
ONE = Summary("stop", 7, 4, 3, 99, TIMINGS)
TWO = Summary("length", 7, 4, 5, None, TIMINGS)
TOKEN = TokenInfo(5, "人".encode()[:2], -0.25, ((5, "人".encode()[:2], -0.25), (9, b"x", -1.5)))


def test_pieces_of_several_answers_are_kept_apart() -> None:
    collector = Collector()
    for index, text in ((0, "a"), (1, "x"), (0, "b"), (1, "y")):
        collector.piece(index, text, ())
    outputs = collector.outputs([ONE, TWO])
    assert outputs["generated_text"] == outputs["text_output"] == ["ab", "xy"]
    assert outputs["finish_reason"] == ["stop", "length"]
    assert outputs["completion_tokens"] == [3, 5]
    assert (outputs["prompt_tokens"], outputs["cached_tokens"]) == ([7], [4])
    assert "logprobs" not in outputs


def test_an_answer_without_text() -> None:
    assert Collector().outputs([ONE])["text_output"] == [""]


def test_details_say_the_seed_and_the_times() -> None:
    first, second = (json.loads(text) for text in final_outputs([ONE, TWO])["details"])
    assert first == {"seed": 99, "queue_ms": 0.123, "prefill_ms": 2.0, "decode_ms": None, "ttft_ms": 3.5}
    assert second["seed"] is None


def test_logprobs() -> None:
    (text,) = piece_outputs(1, "x", [TOKEN])["logprobs"]
    (entry,) = json.loads(text)
    cut = {"id": 5, "token": "\ufffd", "bytes": [0xE4, 0xBA], "logprob": -0.25}
    assert entry == {**cut, "top_logprobs": [cut, {"id": 9, "token": "x", "bytes": [120], "logprob": -1.5}]}
    collector = Collector()
    collector.piece(0, "", [TOKEN])
    collector.piece(0, "人", [TOKEN])
    assert len(json.loads(collector.outputs([ONE])["logprobs"][0])) == 2


def test_every_output_is_in_the_contract() -> None:
    collector = Collector()
    collector.piece(0, "a", [TOKEN])
    made = {*piece_outputs(0, "a", [TOKEN]), *final_outputs([ONE]), *collector.outputs([ONE])}
    assert made == {spec.name for spec in contract.OUTPUTS}
