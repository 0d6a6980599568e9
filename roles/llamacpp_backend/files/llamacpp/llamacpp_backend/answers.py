"""What the engine says -> values of output tensors, by name. Knows neither Triton nor how they travel."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .engine.job import Summary, TokenInfo

Outputs = dict[str, list[Any]]


class Collector:
    """The pieces of n answers, kept until they are complete."""

    def __init__(self) -> None:
        self._texts: dict[int, list[str]] = {}
        self._tokens: dict[int, list[TokenInfo]] = {}

    def piece(self, index: int, text: str, tokens: Sequence[TokenInfo]) -> None:
        """Keep a piece of answer `index`."""
        self._texts.setdefault(index, []).append(text)
        self._tokens.setdefault(index, []).extend(tokens)

    def outputs(self, answers: Sequence[Summary]) -> Outputs:
        """All outputs of the complete answers."""
        texts = ["".join(self._texts.get(index, ())) for index in range(len(answers))]
        outputs = final_outputs(answers)
        outputs |= {"generated_text": texts, "text_output": texts}
        if any(self._tokens.values()):
            outputs["logprobs"] = [_logprobs(self._tokens.get(index, ())) for index in range(len(answers))]
        return outputs


def piece_outputs(index: int, text: str, tokens: Sequence[TokenInfo]) -> Outputs:
    """Outputs of one piece of a stream."""
    outputs: Outputs = {"generated_text": [text], "text_output": [text], "index": [index]}
    if tokens:
        outputs["logprobs"] = [_logprobs(tokens)]
    return outputs


def final_outputs(answers: Sequence[Summary]) -> Outputs:
    """Outputs of a stream's last response: no text, but how the answers ended."""
    first = answers[0]
    return {
        "generated_text": [""] * len(answers),
        "text_output": [""] * len(answers),
        "finish_reason": [answer.finish_reason for answer in answers],
        "prompt_tokens": [first.prompt_tokens],
        "cached_tokens": [first.cached_tokens],
        "completion_tokens": [answer.completion_tokens for answer in answers],
        "details": [json.dumps({"seed": answer.seed, **_rounded(asdict(answer.timings))}) for answer in answers],
    }


def _rounded(timings: dict[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None else round(value, 3) for name, value in timings.items()}


def _logprobs(tokens: Sequence[TokenInfo]) -> str:
    """OpenAI's shape of a chat's logprobs, with llama.cpp's token ids. A token's text may be a part of a character."""

    def entry(token: int, text: bytes, logprob: float) -> dict[str, Any]:
        shown = text.decode("utf-8", "replace")
        return {"id": token, "token": shown, "bytes": list(text), "logprob": round(logprob, 6)}

    content = [
        {**entry(item.token, item.text_bytes, item.logprob), "top_logprobs": [entry(*top) for top in item.top]}
        for item in tokens
    ]
    return json.dumps(content, ensure_ascii=False)
