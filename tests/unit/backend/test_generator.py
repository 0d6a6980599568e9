"""Generation on an engine that plays back a script: how answers end, how batches are cut, when a cancel counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from llamacpp_backend.errors import Cancelled, EngineFailure
from llamacpp_backend.generator import Summary, generate
from llamacpp_backend.parameters import Sampling, parse_sampling

END = 0
GREEDY = replace(parse_sampling({}, {}, 4096), temperature=0.0)


@dataclass
class Script:
    """An engine whose tokens are characters (their bytes: `texts`); it checks that positions follow each other."""

    texts: list[bytes]
    n_ctx: int = 100
    n_batch: int = 8
    fail_at: int = -1
    steps: list[tuple[int, int]] = field(default_factory=list)  # position and length of each decode
    chosen: int = 0
    open_sources: int = 0
    fed: int = 0

    def clear(self) -> None:
        self.fed = 0

    def decode(self, tokens: Sequence[int], position: int) -> None:
        assert 1 <= len(tokens) <= self.n_batch
        assert position == self.fed
        if len(self.steps) == self.fail_at:
            raise EngineFailure("no slot")
        self.fed += len(tokens)
        assert self.fed <= self.n_ctx
        self.steps.append((position, len(tokens)))

    def sampler(self, sampling: Sampling, prompt: Sequence[int]) -> Script:
        self.open_sources += 1
        return self

    def next(self) -> int:
        self.chosen += 1
        return self.chosen if self.chosen <= len(self.texts) else END

    def close(self) -> None:
        self.open_sources -= 1

    def token_bytes(self, token: int) -> bytes:
        return self.texts[token - 1]

    def is_end(self, token: int) -> bool:
        return token == END


def run(
    engine: Script, prompt: int = 3, cancel_after: int | None = None, **changes: object
) -> tuple[list[str], Summary]:
    """Generate; the client is gone from the `cancel_after`-th decode on."""
    sampling = replace(GREEDY, **changes)  # type: ignore[arg-type]
    pieces: list[str] = []

    def gone() -> bool:
        return cancel_after is not None and len(engine.steps) >= cancel_after

    return pieces, generate(engine, list(range(prompt)), sampling, pieces.append, gone)


def test_end_token_is_counted() -> None:
    assert run(Script([b"a", b"b"])) == (["a", "b"], Summary("stop", 3, 3))


def test_answer_of_the_end_token_alone() -> None:
    assert run(Script([])) == ([], Summary("stop", 3, 1))


def test_max_tokens_without_a_needless_last_decode() -> None:
    engine = Script([b"a"] * 9)
    assert run(engine, max_tokens=4) == (["a"] * 4, Summary("length", 3, 4))
    assert engine.steps == [(0, 3), (3, 1), (4, 1), (5, 1)]


def test_end_token_as_the_last_allowed_one_is_a_stop() -> None:
    assert run(Script([b"a"]), max_tokens=2)[1] == Summary("stop", 3, 2)


def test_full_context_ends_with_length() -> None:
    engine = Script([b"a"] * 99, n_ctx=10)
    assert run(engine, prompt=7) == (["a"] * 3, Summary("length", 7, 3))
    assert engine.fed == 9


def test_prompt_that_leaves_room_for_one_token() -> None:
    assert run(Script([b"a"] * 99, n_ctx=10), prompt=9) == (["a"], Summary("length", 9, 1))


@pytest.mark.parametrize(
    ("prompt", "steps"), [(1, [1]), (7, [7]), (8, [8]), (9, [8, 1]), (16, [8, 8]), (20, [8, 8, 4])]
)
def test_prompt_is_cut_into_batches(prompt: int, steps: list[int]) -> None:
    engine = Script([])
    run(engine, prompt)
    assert [count for _, count in engine.steps] == steps


def test_stop_string_over_tokens_ends_without_a_further_step() -> None:
    engine = Script([b"ok", b"#", b"##", b"never"])
    assert run(engine, stop=("###",)) == (["ok"], Summary("stop", 3, 3))
    assert len(engine.steps) == 3


def test_held_back_text_is_sent_at_the_end() -> None:
    assert run(Script([b"ok#", b"#"]), stop=("###",)) == (["ok", "##"], Summary("stop", 3, 3))
    assert run(Script([b"ok#", b"#"]), stop=("###",), max_tokens=2) == (["ok", "##"], Summary("length", 3, 2))


def test_cut_off_character_becomes_a_replacement() -> None:
    smile = "😊".encode()
    assert run(Script([smile[:2], smile[2:]])) == (["😊"], Summary("stop", 3, 3))
    assert run(Script([smile[:2], smile[2:]]), max_tokens=1) == (["\ufffd"], Summary("length", 3, 1))


def test_cut_off_character_that_completes_a_stop_string() -> None:
    assert run(Script([b"a\xf0"]), stop=("\ufffd",), max_tokens=1) == (["a"], Summary("stop", 3, 1))


def test_cancel_before_the_first_step() -> None:
    engine = Script([b"a"])
    with pytest.raises(Cancelled):
        run(engine, cancel_after=0)
    assert engine.steps == []


def test_cancel_between_prefill_steps() -> None:
    engine = Script([b"a"])
    with pytest.raises(Cancelled):
        run(engine, prompt=24, cancel_after=1)
    assert engine.steps == [(0, 8)]
    assert engine.chosen == 0


def test_cancel_between_tokens() -> None:
    engine = Script([b"a"] * 50)
    with pytest.raises(Cancelled):
        run(engine, cancel_after=5)
    assert len(engine.steps) == 5
    assert engine.open_sources == 0


def test_failing_step_closes_the_sampler() -> None:
    engine = Script([b"a"] * 50, fail_at=4)
    with pytest.raises(EngineFailure, match="no slot"):
        run(engine)
    assert engine.open_sources == 0


def test_failing_client_closes_the_sampler() -> None:
    def break_off(_text: str) -> None:
        raise ConnectionError

    engine = Script([b"a"] * 50)
    with pytest.raises(ConnectionError):
        generate(engine, [1], GREEDY, break_off, lambda: False)
    assert engine.open_sources == 0


def test_each_answer_starts_from_an_empty_sequence() -> None:
    engine = Script([b"a"] * 50)
    run(engine, max_tokens=2)
    run(engine, max_tokens=2)
    assert [position for position, _ in engine.steps] == [0, 3, 0, 3]
