"""The engine's door: what goes in (Job) and where the answers come out (Reply)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ..errors import BackendError
from ..parameters import Sampling

FinishReason = Literal["stop", "length", "deadline"]


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """A token of an answer, made only where the sampling asks for logprobs.

    `text_bytes`: its share of the text, maybe a part of a character; cut where a stop string begins.
    `top`: the likeliest tokens there, best first, each as (token, text_bytes, logprob).
    """

    token: int
    text_bytes: bytes
    logprob: float
    top: tuple[tuple[int, bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds: from the arrival to a slot, on to the first token, on to the end; arrival to first token.

    None: it did not come to that.
    """

    queue_ms: float | None
    prefill_ms: float | None
    decode_ms: float | None
    ttft_ms: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    """How an answer ended.

    `cached_tokens`: tokens of the prompt that were not computed for this answer. `completion_tokens`: every token
    that the model chose, its end token included. `seed`: the one in use, None when greedy.
    """

    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    seed: int | None
    timings: Timings


class Reply(Protocol):
    """Where a job's answers go; called from the engine's thread. Exactly one of `finish` and `fail` is called, last;
    after a `finish` that raised, `fail` too, so that the client does not wait for what never comes.

    An exception from any of these ends this job, and no other.
    """

    def client_gone(self) -> bool:
        """Whether nobody waits any more; asked about every 20 ms."""

    def piece(self, index: int, text: str, tokens: Sequence[TokenInfo]) -> None:
        """New text of answer `index`, 0 to n - 1; empty only when it brings tokens."""

    def keep_alive(self) -> None:
        """There was nothing to say for half a second."""

    def finish(self, answers: Sequence[Summary]) -> None:
        """All n answers are complete."""

    def fail(self, error: BackendError) -> None:
        """There is no answer, or no more of it."""


@dataclass(eq=False)
class Job:
    """One request for `sampling.n` answers to one prompt.

    `prompt`: token ids, at least one and fewer than the runner's n_ctx. `deadline`: seconds of time.monotonic.
    """

    prompt: Sequence[int]
    sampling: Sampling
    reply: Reply
    deadline: float | None = None
