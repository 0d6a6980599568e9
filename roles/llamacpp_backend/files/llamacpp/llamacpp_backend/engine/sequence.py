"""One answer in progress: its tokens, where they stand, what goes out as text, and when it is over."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from ..parameters import Sampling
from ..text import TextStream
from .job import FinishReason, Summary, Timings
from .logprobs import InfoStream
from .runner import Choice, Sampler

if TYPE_CHECKING:
    from .ticket import Ticket

_NEVER = 1 << 62


class State(enum.Enum):
    """WAITING for a slot, PREFILL: tokens to feed before the next can be sampled, DECODE: one token per step, DONE."""

    WAITING = enum.auto()
    PREFILL = enum.auto()
    DECODE = enum.auto()
    DONE = enum.auto()


class Answer:
    """One of the n answers to a job's prompt.

    `tokens`: the prompt and all tokens chosen so far; the first `fed` of them are in the slot. A preempted answer
    keeps its tokens and feeds them again, so nothing that the client has seen changes.
    """

    __slots__ = (
        "_end_allowed_from",
        "_text",
        "admitted_at",
        "cached",
        "fed",
        "first_token_at",
        "follows",
        "index",
        "infos",
        "is_suspect",
        "last_token_at",
        "limit",
        "marks",
        "n_prompt",
        "number",
        "reach",
        "reason",
        "result",
        "sampler",
        "sampling",
        "slot",
        "state",
        "ticket",
        "tokens",
    )

    def __init__(self, ticket: Ticket, index: int, number: int, sampling: Sampling, n_ctx: int) -> None:
        """`number`: age among all answers, lower is older. `n_ctx`: most tokens that a slot may hold."""
        self.ticket = ticket
        self.index = index
        self.number = number
        self.sampling = sampling
        self.tokens = list(ticket.job.prompt)
        self.n_prompt = len(self.tokens)
        self.limit = min(sampling.max_tokens, n_ctx - self.n_prompt)
        self.state = State.WAITING
        self.slot: int | None = None
        self.fed = 0
        self.sampler: Sampler | None = None
        self.reason: FinishReason | None = None
        self.result: Summary | None = None  # once it is complete

        # Positions, ascending, where a prefill chunk must end for a checkpoint to be taken.
        self.marks: list[int] = []
        # The answer that is computing the first `reach` tokens of this one, to be copied from there.
        self.follows: Answer | None = None
        self.reach = 0
        # A step that it took part in failed: it goes on alone until it has its next token; a second failure ends it.
        self.is_suspect = False

        self.cached = 0  # prompt tokens that were not computed for the first token
        self.admitted_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None

        self._end_allowed_from = _NEVER if sampling.ignore_eos else sampling.min_tokens
        self._text = TextStream(sampling.stop)
        self.infos = None if sampling.logprobs is None else InfoStream()

    @property
    def count(self) -> int:
        """Tokens chosen so far."""
        return len(self.tokens) - self.n_prompt

    @property
    def forbids_end(self) -> bool:
        """Whether the next token must not be one that ends a generation."""
        return len(self.tokens) - self.n_prompt < self._end_allowed_from

    def add_mark(self, position: int) -> None:
        """Let a prefill chunk end at `position` too."""
        if position not in self.marks:
            self.marks = sorted((*self.marks, position))

    def take(self, choice: Choice, data: bytes) -> str:
        """Take a chosen token with its bytes; return the text that can go out. May set `reason`."""
        self.tokens.append(choice.token)
        text = self._text.feed(data)
        if self._text.stopped:
            self.reason = "stop"
        elif len(self.tokens) - self.n_prompt >= self.limit:
            # The cut-off tail may complete a stop string only as replacement characters; then that ended the text.
            text += self._text.finish()
            self.reason = "stop" if self._text.stopped else "length"
        return text

    def take_end(self, token: int) -> str:
        """Take the model's end token; return the last text."""
        self.tokens.append(token)
        return self.end("stop")

    def end(self, reason: FinishReason) -> str:
        """End with what there is; return the last text. A character cut off by the end becomes one U+FFFD."""
        self.reason = reason
        return self._text.finish()

    def close(self) -> None:
        """Release the sampler; the answer is over."""
        self.state = State.DONE
        self.follows = None
        if self.sampler is not None:
            self.sampler.close()

    def summary(self, now: float) -> Summary:
        """Only of an answer with a `reason`."""
        if self.reason is None:
            raise ValueError("an answer without a finish reason has no summary")
        arrived = self.ticket.arrived_at
        timings = Timings(
            queue_ms=_ms(arrived, self.admitted_at),
            prefill_ms=_ms(self.admitted_at, self.first_token_at),
            decode_ms=_ms(self.first_token_at, now),
            ttft_ms=_ms(arrived, self.first_token_at),
        )
        seed = self.sampler.seed if self.sampler is not None else None
        return Summary(self.reason, self.n_prompt, self.cached, self.count, seed, timings)


def _ms(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else (end - start) * 1000
