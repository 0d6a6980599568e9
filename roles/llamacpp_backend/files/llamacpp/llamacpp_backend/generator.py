"""Prompt tokens -> pieces of text. Knows neither Triton nor requests, and llama.cpp only through `Engine`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Literal, Protocol

from .errors import Cancelled
from .parameters import Sampling
from .text import TextStream


@dataclass(frozen=True)
class Summary:
    """How an answer ended. `completion_tokens` counts every token the model chose, its end token included."""

    finish_reason: Literal["stop", "length"]
    prompt_tokens: int
    completion_tokens: int


class TokenSource(Protocol):
    """Chooses tokens for one answer."""

    def next(self) -> int:
        """The token that follows what was decoded last."""

    def close(self) -> None:
        """Release it."""


class Engine(Protocol):
    """The part of the runtime that generation needs: one sequence, positions from 0."""

    @property
    def n_ctx(self) -> int:
        """Tokens that prompt and answer may have together."""

    @property
    def n_batch(self) -> int:
        """Most tokens in one `decode`."""

    def clear(self) -> None:
        """Forget the sequence."""

    def decode(self, tokens: Sequence[int], position: int) -> None:
        """Feed tokens that follow `position` fed ones. Raises EngineFailure."""

    def sampler(self, sampling: Sampling, prompt: Sequence[int]) -> TokenSource:
        """A fresh source of tokens."""

    def token_bytes(self, token: int) -> bytes:
        """The token's share of the text, maybe a part of a character; empty for control tokens."""

    def is_end(self, token: int) -> bool:
        """Whether the model says with this token that it is done."""


def generate(
    engine: Engine,
    prompt: Sequence[int],
    sampling: Sampling,
    emit: Callable[[str], None],
    is_cancelled: Callable[[], bool],
) -> Summary:
    """Answer one prompt, giving each new stretch of text to `emit`.

    `prompt`: 1 to n_ctx - 1 token ids. Ends with `length` when max_tokens are chosen or prompt and answer fill the
    context. Raises Cancelled between two steps once `is_cancelled`, EngineFailure when a step fails.
    """
    engine.clear()
    for start in range(0, len(prompt), engine.n_batch):
        _stop_if(is_cancelled)
        engine.decode(prompt[start : start + engine.n_batch], start)
    limit = min(sampling.max_tokens, engine.n_ctx - len(prompt))
    text = TextStream(sampling.stop)
    with closing(engine.sampler(sampling, prompt)) as source:
        for count in range(1, limit + 1):
            token = source.next()
            if engine.is_end(token):
                _emit(emit, text.finish())
                return Summary("stop", len(prompt), count)
            _emit(emit, text.feed(engine.token_bytes(token)))
            if text.stopped:
                return Summary("stop", len(prompt), count)
            _stop_if(is_cancelled)
            if count < limit:
                engine.decode([token], len(prompt) + count - 1)
    _emit(emit, text.finish())
    # The cut-off tail may complete a stop string only as replacement characters; it then ends the text all the same.
    return Summary("stop" if text.stopped else "length", len(prompt), limit)


def _emit(emit: Callable[[str], None], text: str) -> None:
    if text:
        emit(text)


def _stop_if(is_cancelled: Callable[[], bool]) -> None:
    if is_cancelled():
        raise Cancelled("the request was cancelled")
