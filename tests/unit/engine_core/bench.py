"""An engine core on a fake runner with a clock of its own, and what its answers must be."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llamacpp_backend.engine.core import Core, EngineLimits
from llamacpp_backend.engine.job import Job, Summary, TokenInfo
from llamacpp_backend.engine.metrics import Metrics
from llamacpp_backend.engine.prompt_cache import CacheLimits
from llamacpp_backend.errors import BackendError
from llamacpp_backend.parameters import Sampling, parse_sampling

from tests.unit.engine_core.fake_runner import END, FakeRunner, next_token, token_bytes

SMALL_CACHE = CacheLimits(n_bytes=1 << 20, checkpoint_every=8, min_reuse=1, min_save=1)


def sampling(**given: object) -> Sampling:
    """Greedy, six tokens, no stop strings, but for what is given."""
    return parse_sampling({"temperature": 0.0, "max_tokens": 6, "stop": [], **given}, {}, 4096)


class Reply:
    """Remembers what it is told. `gone`: the client has left. `breaks_at`: the number of the piece that raises."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, str, list[TokenInfo]]] = []
        self.finals: list[list[Summary] | BackendError] = []
        self.keep_alives = 0
        self.gone = False
        self.breaks_at = -1

    def client_gone(self) -> bool:
        return self.gone

    def piece(self, index: int, text: str, tokens: Sequence[TokenInfo]) -> None:
        assert not self.finals, "a piece after the final call"
        assert text or tokens, "a piece of nothing"
        if len(self.pieces) == self.breaks_at:
            raise ConnectionError("broken pipe")
        self.pieces.append((index, text, list(tokens)))

    def keep_alive(self) -> None:
        self.keep_alives += 1

    def finish(self, answers: Sequence[Summary]) -> None:
        self.finals.append(list(answers))

    def fail(self, error: BackendError) -> None:
        self.finals.append(error)

    def text(self, index: int = 0) -> str:
        """All text of one answer."""
        return "".join(text for at, text, _ in self.pieces if at == index)

    def infos(self, index: int = 0) -> list[TokenInfo]:
        """All tokens of one answer."""
        return [info for at, _, infos in self.pieces if at == index for info in infos]

    @property
    def summaries(self) -> list[Summary]:
        """Of a job that ended well."""
        assert len(self.finals) == 1
        assert isinstance(self.finals[0], list), self.finals[0]
        return self.finals[0]

    @property
    def error(self) -> BackendError:
        """Of a job that failed."""
        assert len(self.finals) == 1
        assert isinstance(self.finals[0], BackendError), self.finals[0]
        return self.finals[0]


class Bench:
    """A core whose turns and time are the test's."""

    def __init__(self, runner: FakeRunner, cache: CacheLimits = SMALL_CACHE, max_added_latency_ms: float = 0.0) -> None:
        self.runner = runner
        self.now = 100.0
        self.errors: list[str] = []
        self.metrics = Metrics(runner.n_ctx)
        limits = EngineLimits(8, cache, max_added_latency_ms)
        self.core = Core(runner, limits, self.metrics, self.clock, self.errors.append)

    def clock(self) -> float:
        self.now += 0.0001
        return self.now

    def submit(self, prompt: Sequence[int], deadline: float | None = None, **given: Any) -> Job:
        """A job taken on; its reply is a Reply."""
        job = Job(list(prompt), sampling(**given), Reply(), deadline)
        self.core.accept(job, self.now)
        return job

    def leave(self, job: Job) -> None:
        """The job's client goes, and the next turn notices."""
        reply_of(job).gone = True
        self.core._clients.next_look = 0.0

    def run(self, most: int = 2000) -> None:
        """Turns until all is done; fails when that takes more than so many."""
        for _ in range(most):
            if not self.core.is_busy:
                return
            self.core.turn()
        raise AssertionError(f"not done after {most} turns")

    def ask(self, prompt: Sequence[int], **given: Any) -> Reply:
        """One job from its start to its end."""
        reply = reply_of(self.submit(prompt, **given))
        self.run()
        return reply


def reply_of(job: Job) -> Reply:
    """The job's reply."""
    assert isinstance(job.reply, Reply)
    return job.reply


def expected(
    prompt: Sequence[int], wanted: Sampling, index: int, n_ctx: int, n_end: int = 1
) -> tuple[str, str, list[int]]:
    """Text, finish reason and tokens of one answer, made without any engine."""
    if wanted.seed is not None:
        wanted = replace(wanted, seed=wanted.seed + index)
    history = list(prompt)
    data = b""
    limit = min(wanted.max_tokens, n_ctx - len(prompt))
    while True:
        count = len(history) - len(prompt)
        token = next_token(history, wanted.seed, wanted.ignore_eos or count < wanted.min_tokens, n_end)
        history.append(token)
        tokens = history[len(prompt) :]
        if token == END:
            return _cut(data.decode("utf-8", "replace"), wanted)[0], "stop", tokens
        data += token_bytes(token)
        text, is_stopped = _cut(codecs.getincrementaldecoder("utf-8")("replace").decode(data), wanted)
        if is_stopped:
            return text, "stop", tokens
        if count + 1 == limit:
            text, is_stopped = _cut(data.decode("utf-8", "replace"), wanted)
            return text, "stop" if is_stopped else "length", tokens


def _cut(text: str, wanted: Sampling) -> tuple[str, bool]:
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in wanted.stop if stop in text]
    return (text[: min(found)[1]], True) if found else (text, False)
