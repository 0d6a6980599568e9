"""One answer in progress: its tokens, where they stand, what goes out as text, and when it is over."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from ..parameters import Sampling
from ..text import TextStream
from .job import FinishReason, Summary, Timings, TokenInfo
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
        "_pending",
        "_text",
        "_text_sent",
        "_tokens_sent",
        "admitted_at",
        "cached",
        "fed",
        "first_token_at",
        "follows",
        "index",
        "is_suspect",
        "last_token_at",
        "limit",
        "marks",
        "n_prompt",
        "number",
        "preemptions",
        "reach",
        "reason",
        "result",
        "resumed",
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
        # A step that it took part in failed: it goes on alone until it has proved harmless.
        self.is_suspect = False
        self.resumed = False

        self.cached: int | None = None  # prompt tokens that the first admission found; None before it
        self.preemptions = 0
        self.admitted_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None

        self._end_allowed_from = _NEVER if sampling.ignore_eos else sampling.min_tokens
        self._text = TextStream(sampling.stop)
        # Only for logprobs: what has been chosen but is not wholly in the text that has gone out; sizes in bytes.
        self._pending: list[TokenInfo] = []
        self._text_sent = 0
        self._tokens_sent = 0

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

    def note(self, info: TokenInfo) -> None:
        """Keep a token's logprobs until its text goes out."""
        self._pending.append(info)

    def infos(self, text: str) -> list[TokenInfo]:
        """The tokens whose text is out once `text` is. At the end, of one that a stop string cuts, the part before."""
        self._text_sent += len(text.encode())
        ready: list[TokenInfo] = []
        for info in self._pending:
            visible = self._text_sent - self._tokens_sent
            if len(info.text_bytes) > visible:
                if self.reason is None or visible <= 0:
                    break
                info = TokenInfo(info.token, info.text_bytes[:visible], info.logprob, info.top)
            self._tokens_sent += len(info.text_bytes)
            ready.append(info)
        del self._pending[: len(ready)]
        return ready

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
        return Summary(self.reason, self.n_prompt, self.cached or 0, self.count, seed, timings)


def _ms(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else (end - start) * 1000
