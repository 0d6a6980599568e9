"""Closed-loop load: some clients, each of which sends its next request when its last one is answered."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from bench import http
from bench.dialects import Dialect, Wanted


@dataclass
class Answer:
    """One request as the client saw it. Times are time.monotonic seconds; `pieces` is when each piece of text came."""

    started: float
    ended: float = 0.0
    pieces: list[float] = field(default_factory=list)
    text: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    error: str = ""

    @property
    def seconds(self) -> float:
        """From the request to the answer's end."""
        return self.ended - self.started

    @property
    def ttft(self) -> float:
        """From the request to the first piece of text, in seconds. Raises IndexError when none came."""
        return self.pieces[0] - self.started

    @property
    def gaps(self) -> list[float]:
        """Seconds between one piece of text and the next."""
        return [after - before for before, after in itertools.pairwise(self.pieces)]


class Target(Protocol):
    """Where requests go: a server that answers."""

    @property
    def host(self) -> str:
        """Its address."""

    @property
    def port(self) -> int:
        """Its port."""

    @property
    def dialect(self) -> Dialect:
        """How it is spoken to."""


async def ask(target: Target, wanted: Wanted, answer: Answer | None = None) -> Answer:
    """Send one request and follow its answer; `answer`, when given, can be watched as it grows. Never raises for a
    refused or broken answer: `error` says what happened.
    """
    dialect = target.dialect
    answer = answer or Answer(time.monotonic())
    try:
        async with aclosing(http.post(target.host, target.port, dialect.path(wanted), dialect.body(wanted))) as events:
            async for event in events:
                piece = dialect.read(event.data)
                if piece.error:
                    answer.error = piece.error
                if piece.text:
                    answer.pieces.append(event.at)
                    answer.text += piece.text
                if piece.completion_tokens is not None:
                    answer.completion_tokens = piece.completion_tokens
                    answer.prompt_tokens = piece.prompt_tokens or 0
                    answer.cached_tokens = piece.cached_tokens
    except (http.HttpError, OSError) as error:
        answer.error = str(error) or repr(error)
    answer.ended = time.monotonic()
    return answer


async def closed_loop(target: Target, requests: Iterable[Wanted], clients: int) -> list[Answer]:
    """Let `clients` clients work off the requests; answers in the order in which they ended."""
    left = iter(requests)
    answers: list[Answer] = []

    async def client(mine: Iterator[Wanted]) -> None:
        for wanted in mine:
            answers.append(await ask(target, wanted))

    await asyncio.gather(*(client(left) for _ in range(clients)))
    return answers


def faults(answers: Sequence[Answer], wanted: Sequence[Wanted], exact: bool = True) -> list[str]:
    """What is wrong with the answers, each kind once: a benchmark of wrong answers is none.

    `exact`: an answer must have all the tokens that were asked for, and no more.
    """
    found = {answer.error for answer in answers if answer.error}
    for expected in {(request.prompt_tokens, request.max_tokens) for request in wanted}:
        for answer in answers:
            got = (answer.prompt_tokens, answer.completion_tokens if exact else expected[1])
            if not answer.error and got != expected:
                found.add(f"answered {got} tokens of prompt and completion, not {expected}")
    return sorted(found)
