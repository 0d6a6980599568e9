"""Asks an engine on real llama.cpp as the product does, in the same process."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llamacpp_backend.engine.job import Job, Summary, TokenInfo
from llamacpp_backend.engine.loop import Engine
from llamacpp_backend.errors import BackendError
from llamacpp_backend.parameters import parse_sampling
from llamacpp_backend.prompts import PromptEncoder
from llamacpp_backend.requests import GenerateRequest

N_CTX = 1024
KNOWN: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parents[2] / "files" / "demo_model" / "answers.json").read_text(encoding="utf-8")
)
ANSWERS: list[dict[str, Any]] = KNOWN["answers"]
SECONDS = 60


@dataclass(frozen=True)
class Answer:
    """What came out."""

    text: str
    pieces: list[str]
    tokens: list[TokenInfo]
    summary: Summary


class Asked:
    """One request under way, and its reply."""

    def __init__(self) -> None:
        self._pieces: dict[int, list[str]] = {}
        self._tokens: dict[int, list[TokenInfo]] = {}
        self._final: Sequence[Summary] | BackendError | None = None
        self._changed = threading.Condition()
        self._gone = False
        self.finals = 0

    def client_gone(self) -> bool:
        return self._gone

    def piece(self, index: int, text: str, tokens: Sequence[TokenInfo]) -> None:
        with self._changed:
            self._pieces.setdefault(index, []).append(text)
            self._tokens.setdefault(index, []).extend(tokens)
            self._changed.notify_all()

    def keep_alive(self) -> None:
        pass

    def finish(self, answers: Sequence[Summary]) -> None:
        self._end(answers)

    def fail(self, error: BackendError) -> None:
        self._end(error)

    def _end(self, final: Sequence[Summary] | BackendError) -> None:
        with self._changed:
            self.finals += 1
            self._final = final
            self._changed.notify_all()

    def leave(self) -> None:
        """The client goes away."""
        self._gone = True

    def wait_for_pieces(self, count: int) -> None:
        """Return once so many pieces have come."""
        with self._changed:
            assert self._changed.wait_for(lambda: sum(map(len, self._pieces.values())) >= count, SECONDS)

    def wait_all(self) -> list[Answer]:
        """All answers to the prompt. Raises the error that came in their place."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._final is not None, SECONDS), "no answer came"
        assert self.finals == 1
        if isinstance(self._final, BackendError):
            raise self._final
        assert self._final is not None
        return [
            Answer("".join(self._pieces.get(i, [])), self._pieces.get(i, []), self._tokens.get(i, []), summary)
            for i, summary in enumerate(self._final)
        ]

    def wait(self) -> Answer:
        """The one answer."""
        (answer,) = self.wait_all()
        return answer


@dataclass(frozen=True)
class Asker:
    """An engine and what makes prompts for it."""

    encoder: PromptEncoder
    engine: Engine
    n_ctx: int

    def begin(self, text: str, *, is_chat: bool = False, **options: Any) -> Asked:
        """Ask without waiting; greedy unless options say otherwise."""
        sampling = parse_sampling({"temperature": 0.0, "max_tokens": min(600, self.n_ctx), **options}, {}, self.n_ctx)
        tokens = self.encoder.encode(GenerateRequest(text, is_chat, sampling, stream=False))
        asked = Asked()
        self.engine.submit(Job(tokens, sampling, asked))
        return asked

    def raw(self, prompt: str, **options: Any) -> Answer:
        """The answer to a raw prompt."""
        return self.begin(prompt, **options).wait()

    def chat(self, messages: list[dict[str, Any]], **options: Any) -> Answer:
        """The answer to a conversation."""
        return self.begin(json.dumps(messages), is_chat=True, **options).wait()
