"""How one token is chosen: the chain, greedy, biases, log probabilities, seeds, grammars."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from llamacpp_backend.constrain.compiling import GRAMMAR, gbnf_of
from llamacpp_backend.engine.runner import Choice, Chunk
from llamacpp_backend.errors import BadRequest, EngineFailure
from llamacpp_backend.parameters import PARAMETERS, Sampling, parse_sampling

if TYPE_CHECKING:
    from llamacpp_backend.llama.model import Model
    from llamacpp_backend.llama.runner import LlamaRunner
    from llamacpp_backend.llama.samplers import ChainSampler

Child = Callable[[str], subprocess.CompletedProcess[str]]
Models = dict[str, "Model"]

N_CTX = 256
TEXT = list(range(20, 50))
OPEN: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}  # nothing is left out
FREE: dict[str, Any] = {**OPEN, "temperature": 1.0}
HOT: dict[str, Any] = {**OPEN, "temperature": 10.0}


def sampling(**options: Any) -> Sampling:
    return parse_sampling({"temperature": 0.0, **options}, {}, N_CTX)


@pytest.fixture
def fed(open_runner: Callable[..., LlamaRunner]) -> LlamaRunner:
    """A context whose slot 0 holds TEXT and has logits."""
    runner = open_runner("dense", n_slots=2)
    runner.decode([Chunk(0, TEXT, 0, True)])
    return runner


def row(runner: LlamaRunner, slot: int = 0) -> np.ndarray[Any, Any]:
    """The slot's logits themselves: what is written here is sampled from."""
    from llamacpp_backend.llama.calls import brief

    return runner._view(brief.llama_get_logits_ith(runner._context, runner._rows[slot]))


def draw(
    runner: LlamaRunner, count: int = 1, *, prompt: list[int] | None = None, forbid_end: bool = False, **options: Any
) -> list[Choice]:
    """Choices of one sampler, all from the same logits."""
    with closing(runner.sampler(sampling(**options), [1] if prompt is None else prompt)) as sampler:
        return [runner.sample(0, sampler, forbid_end) for _ in range(count)]


def tokens(runner: LlamaRunner, count: int = 1, **options: Any) -> list[int]:
    return [choice.token for choice in draw(runner, count, **options)]


def ranked(runner: LlamaRunner) -> list[int]:
    """All tokens, the likeliest first."""
    return [int(token) for token in np.argsort(-row(runner), kind="stable")]


def bias(*pairs: tuple[int, float]) -> dict[str, Any]:
    return {"logit_bias": {str(token): value for token, value in pairs}}


def test_greedy_takes_the_best(fed: LlamaRunner) -> None:
    assert tokens(fed, 3) == ranked(fed)[:1] * 3


@pytest.mark.parametrize(
    "options", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"top_n_sigma": 1e-4}, {"temperature": 0.001}]
)
def test_each_sampler_alone_can_make_the_choice_certain(fed: LlamaRunner, options: dict[str, Any]) -> None:
    assert tokens(fed, 30, **{**HOT, "seed": 3, **options}) == ranked(fed)[:1] * 30
    assert len(set(tokens(fed, 30, **HOT, seed=3))) > 5


def names(sampler: ChainSampler) -> list[str]:
    import llama_cpp

    chain = sampler._chain
    parts = [llama_cpp.llama_sampler_chain_get(chain, index) for index in range(llama_cpp.llama_sampler_chain_n(chain))]
    return [llama_cpp.llama_sampler_name(part).decode().removeprefix("?") for part in parts]  # "?": temperature 1


EVERYTHING: dict[str, Any] = {
    "temperature": 0.5,
    "repetition_penalty": 1.1,
    "dry_multiplier": 0.5,
    "top_n_sigma": 1.0,
    "top_k": 5,
    "typical_p": 0.5,
    "top_p": 0.5,
    "min_p": 0.1,
    "xtc_probability": 0.5,
}
ORDER = ["penalties", "dry", "top-n-sigma", "top-k", "typical", "top-p", "min-p", "xtc", "temp", "dist"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (EVERYTHING, ORDER),
        ({"temperature": 1.0}, ["top-k", "top-p", "min-p", "temp", "dist"]),
        (FREE, ["temp", "dist"]),
        ({**EVERYTHING, "mirostat": 1}, ["penalties", "dry", "temp", "mirostat"]),
        ({**EVERYTHING, "mirostat": 2}, ["penalties", "dry", "temp", "mirostat-v2"]),
        ({**EVERYTHING, "temperature": 0.0}, ["penalties", "dry", "greedy"]),
        ({**EVERYTHING, "temperature": 0.0, "mirostat": 2, "dry_penalty_last_n": 0}, ["penalties", "greedy"]),
        ({"frequency_penalty": 1.0, "penalty_last_n": 0, "temperature": 1.0, **OPEN}, ["temp", "dist"]),
    ],
)
def test_order_of_the_chain(fed: LlamaRunner, options: dict[str, Any], expected: list[str]) -> None:
    """As in llama.cpp's own tools; it ends in a sampler that selects, or the process would end."""
    with closing(fed.sampler(sampling(**options), TEXT)) as sampler:
        assert names(sampler) == expected


def test_greedy_needs_no_chain(fed: LlamaRunner) -> None:
    with closing(fed.sampler(sampling(top_k=5, **bias((1, 2.0)), logprobs=2), TEXT)) as sampler:
        assert sampler._chain is None


def test_draws_follow_the_distribution(fed: LlamaRunner) -> None:
    best = ranked(fed)[:4]
    scaled = row(fed)[best].astype(np.float64) / 2.0
    expected = np.exp(scaled - scaled.max())
    expected /= expected.sum()
    drawn = tokens(fed, 4000, **{**OPEN, "temperature": 2.0, "top_k": 4}, seed=11)
    assert set(drawn) <= set(best)
    shares = np.array([drawn.count(token) for token in best]) / 4000
    assert np.abs(shares - expected).max() < 0.03


def test_seeds(fed: LlamaRunner) -> None:
    assert tokens(fed, 20, **HOT, seed=7) == tokens(fed, 20, **HOT, seed=7) != tokens(fed, 20, **HOT, seed=8)
    assert tokens(fed, 20, **HOT, seed=2**32 - 2) == tokens(fed, 20, **HOT, seed=2**32 - 2)
    with closing(fed.sampler(sampling(**HOT, seed=7), [1])) as sampler:
        assert sampler.seed == 7
    with closing(fed.sampler(sampling(), [1])) as sampler:
        assert sampler.seed is None


@pytest.mark.parametrize(
    "more", [{}, {"mirostat": 1}, {"mirostat": 2}, {"xtc_probability": 0.5, "xtc_threshold": 0.001}]
)
def test_a_drawn_seed_is_reported_and_gives_the_same_again(fed: LlamaRunner, more: dict[str, Any]) -> None:
    seen = set()
    for _ in range(3):
        with closing(fed.sampler(sampling(**{**HOT, **more}), [1])) as sampler:
            drawn = [fed.sample(0, sampler, False).token for _ in range(20)]
            assert sampler.seed is not None
            assert 0 <= sampler.seed < 2**32 - 1
            seen.add(sampler.seed)
            assert tokens(fed, 20, **{**HOT, **more}, seed=sampler.seed) == drawn
    assert len(seen) == 3


def test_bias_forces_and_forbids(fed: LlamaRunner) -> None:
    order = ranked(fed)
    assert tokens(fed, **bias((order[500], 100.0))) == [order[500]]
    assert tokens(fed, **bias((order[0], -100.0), (order[1], -100.0))) == [order[2]]
    gap = float(row(fed)[order[0]] - row(fed)[order[3]])
    assert tokens(fed, **bias((order[3], gap + 0.01))) == [order[3]]
    assert tokens(fed, **bias((order[3], gap - 0.01))) == [order[0]]
    assert set(tokens(fed, 20, **FREE, **bias((order[500], 100.0)), seed=1)) == {order[500]}
    assert order[0] not in tokens(fed, 300, **FREE, **bias((order[0], -100.0)), seed=1)


def test_bias_outside_the_vocabulary(fed: LlamaRunner, llama: Models) -> None:
    for token in (llama["dense"].n_vocab, 2**31 - 1):
        with pytest.raises(EngineFailure, match=f"token {token} is not in the vocabulary"):
            draw(fed, **bias((token, 1.0)))


def test_sampling_leaves_the_logits_as_they_are(fed: LlamaRunner) -> None:
    """Several answers may be drawn from one row."""
    before = row(fed).tobytes()
    edits = bias((5, 7.0), (6, -100.0))
    for options in ({}, HOT, EVERYTHING, {"grammar": "root ::= [a-z]*"}, {**HOT, "grammar": "root ::= [a-z]*"}):
        draw(fed, 3, **{**options, **edits}, forbid_end=True, logprobs=3)
        assert row(fed).tobytes() == before
    row(fed)[5] = math.nan
    with pytest.raises(EngineFailure):
        draw(fed, **edits)
    assert math.isnan(row(fed)[5])


def test_ends_can_be_forbidden(fed: LlamaRunner, llama: Models) -> None:
    """min_tokens and ignore_eos."""
    ends = llama["dense"].end_tokens
    assert len(ends) > 1
    likely = bias(*((end, 90.0 + end % 2) for end in ends))
    allowed = [token for token in ranked(fed) if token not in ends]
    for options in (likely, {**FREE, **likely}, {**EVERYTHING, **likely, "xtc_probability": 0.0, "typical_p": 1.0}):
        assert tokens(fed, **options)[0] in ends
        assert not ends & set(tokens(fed, 50, **options, forbid_end=True))
    assert tokens(fed, **likely, forbid_end=True) == allowed[:1]


def test_suppressed_tokens_never_come(fed: LlamaRunner, llama: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    best = ranked(fed)
    assert llama["dense"].suppressed_tokens == ()
    monkeypatch.setitem(llama["dense"].__dict__, "suppressed_tokens", (best[0], best[1]))
    assert tokens(fed, **bias((best[0], 100.0))) == [best[2]]


@pytest.mark.parametrize("options", [{}, HOT, EVERYTHING, {**HOT, "mirostat": 2}])
@pytest.mark.parametrize("count", [0, 1, 20])
def test_logprobs_are_the_models_own(fed: LlamaRunner, options: dict[str, Any], count: int) -> None:
    logits = row(fed).astype(np.float64)
    expected = logits - logits.max() - math.log(np.exp(logits - logits.max()).sum())
    edits = bias((ranked(fed)[0], -3.0))
    for choice in draw(fed, 5, **{"seed": 1, **options, **edits}, logprobs=count, forbid_end=True):
        assert choice.logprob is not None
        assert choice.logprob == pytest.approx(expected[choice.token], abs=1e-4)
        assert [token for token, _ in choice.top] == ranked(fed)[:count]
        assert [logprob for _, logprob in choice.top] == pytest.approx(expected[ranked(fed)[:count]], abs=1e-4)
        assert sum(math.exp(logprob) for _, logprob in choice.top) <= 1 + 1e-6
    assert draw(fed)[0] == Choice(ranked(fed)[0])


@pytest.mark.parametrize("size", [3, 100, 1059, 5000, 151_936])
@pytest.mark.parametrize("count", [1, 20, 256])
def test_likeliest_tokens_of_any_vocabulary(wheel_directory: object, size: int, count: int) -> None:
    from llamacpp_backend.llama.candidates import likeliest

    logits = np.random.default_rng(size).standard_normal(size, dtype=np.float32)
    for highest in (0, size // 2, size - 1):  # the last: beyond the last whole row
        logits[highest] = logits.max() + 1
        found = likeliest(logits, count)
        assert len(set(found)) == min(count, size)
        assert set(found) == set(np.argsort(-logits)[:count])


def test_penalties_see_the_prompt(fed: LlamaRunner) -> None:
    best = ranked(fed)[0]
    for name, value in (("frequency_penalty", 2.0), ("presence_penalty", 2.0), ("repetition_penalty", 10.0)):
        many = [best] * 40
        penalized: dict[str, Any] = {name: value}
        assert tokens(fed, **penalized, prompt=[best - 1]) == [best]
        if name == "presence_penalty":  # counts once
            row(fed)[ranked(fed)[1]] = row(fed)[best] - 1.0
        assert tokens(fed, **penalized, prompt=many) != [best]
        assert tokens(fed, **penalized, prompt=many, penalty_last_n=0) == [best]
        assert tokens(fed, **penalized, prompt=[*many, *range(best + 1, best + 9)], penalty_last_n=8) == [best]


def test_penalties_see_the_answer(fed: LlamaRunner) -> None:
    drawn = tokens(fed, 60, frequency_penalty=2.0)
    assert drawn[0] == ranked(fed)[0]
    assert len(set(drawn)) > 3


def test_prompt_tokens_that_do_not_exist(fed: LlamaRunner) -> None:
    penalties: list[dict[str, Any]] = [{"frequency_penalty": 1.0}, {"dry_multiplier": 1.0}]
    for options in penalties:
        for token in (-1, 10**6):
            with pytest.raises(EngineFailure, match=f"token {token} is not in the vocabulary"):
                draw(fed, **options, prompt=[token])


def test_dry_stops_a_repetition(fed: LlamaRunner, llama: Models) -> None:
    best = ranked(fed)[0]
    repeated = [60, 61, 62, best, 70, 60, 61, 62]
    options: dict[str, Any] = {"dry_multiplier": 10.0, "dry_base": 4.0}
    for _ in range(2):  # made, then cloned
        assert tokens(fed, **options, prompt=repeated) != [best]
        assert tokens(fed, **options, prompt=repeated, dry_allowed_length=4) == [best]
        assert tokens(fed, **options, prompt=repeated, dry_penalty_last_n=2) == [best]
        breaker = llama["dense"].token_bytes(62).decode()
        assert tokens(fed, **options, prompt=repeated, dry_sequence_breakers=[breaker]) == [best]
        assert tokens(fed, prompt=repeated) == [best]


def test_dry_samplers_are_kept_within_bounds(fed: LlamaRunner) -> None:
    for number in range(40):
        options = sampling(dry_multiplier=1.0, dry_sequence_breakers=[str(number)])
        fed.prepare(options)
        draw(fed, dry_multiplier=1.0, dry_sequence_breakers=[str(number)])
    assert len(fed._tools.dry._made) == 16
    fed.prepare(sampling())
    assert len(fed._tools.dry._made) == 16


def test_xtc_excludes_the_top_choices(fed: LlamaRunner) -> None:
    options = {**FREE, "xtc_probability": 1.0, "xtc_threshold": 1e-6, "seed": 2}
    probabilities = np.exp(row(fed) - row(fed).max())
    above = int((probabilities / probabilities.sum() >= 1e-6).sum())
    assert above > 2
    assert not set(ranked(fed)[: above - 1]) & set(tokens(fed, 100, **options))


def test_typical_and_top_p_narrow_the_choice(fed: LlamaRunner) -> None:
    wide = len(set(tokens(fed, 300, **HOT, seed=5)))
    for narrow in ({"typical_p": 0.2}, {"top_p": 0.2}, {"min_p": 0.2}, {"top_n_sigma": 0.5}, {"top_k": 9}):
        assert len(set(tokens(fed, 300, **{**HOT, **narrow}, seed=5))) < wide


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_aims_at_its_surprise(fed: LlamaRunner, version: int) -> None:
    def variety(tau: float) -> int:
        return len(set(tokens(fed, 200, **{**OPEN, "temperature": 2.0}, mirostat=version, mirostat_tau=tau, seed=4)))

    assert variety(0.1) < variety(9.0)


@pytest.mark.parametrize("options", [{}, HOT, EVERYTHING, {"grammar": "root ::= [a-z]*"}])
@pytest.mark.parametrize("values", [[math.nan], [math.inf], [-math.inf]])
def test_logits_that_are_no_numbers(fed: LlamaRunner, options: dict[str, Any], values: list[float]) -> None:
    before = row(fed).copy()
    if values == [-math.inf]:
        row(fed)[:] = -math.inf  # nothing is left to choose
    else:
        row(fed)[700] = values[0]
    with pytest.raises(EngineFailure, match=r"the best of the model's logits is (nan|inf|-inf); allowed are finite"):
        draw(fed, **options)
    row(fed)[:] = before
    draw(fed, **options)


def test_closed_sampler_is_refused(fed: LlamaRunner) -> None:
    """A closed chain is a null pointer to native code, and a greedy one has none to begin with."""
    for options in ({}, HOT, {"grammar": "root ::= [a-z]*"}):
        sampler = fed.sampler(sampling(**options), TEXT)
        sampler.close()
        sampler.close()
        with pytest.raises(EngineFailure, match="the sampler is closed"):
            fed.sample(0, sampler, False)


@pytest.fixture
def written(fed: LlamaRunner, llama: Models) -> Callable[..., Iterator[tuple[str, bool]]]:
    """Writes under a grammar, yielding the text so far and whether it has ended."""

    def write(steps: int, forbid_end: bool = False, **options: Any) -> Iterator[tuple[str, bool]]:
        fed.clear(0)
        fed.decode([Chunk(0, TEXT, 0, True)])
        data = b""
        with closing(fed.sampler(sampling(**options), TEXT)) as sampler:
            for step in range(steps):
                token = fed.sample(0, sampler, forbid_end).token
                data += llama["dense"].token_bytes(token)
                yield data.decode("utf-8", "ignore"), token in llama["dense"].end_tokens
                if token in llama["dense"].end_tokens:
                    return
                fed.decode([Chunk(0, [token], len(TEXT) + step, True)])

    return write


@pytest.mark.parametrize("options", [{}, {**HOT, "seed": 1}, {**EVERYTHING, "seed": 1}, {**HOT, "mirostat": 2}])
def test_grammar_is_followed_to_its_end(written: Callable[..., Iterator[tuple[str, bool]]], options: Any) -> None:
    *_, (text, ended) = written(40, grammar='root ::= "yes" | "no " [0-9]+ "!"', **options, **bias())
    assert ended or text.startswith("no ")
    assert re.fullmatch("yes|no [0-9]+!" if ended else "no [0-9]+", text)


@pytest.mark.parametrize("options", [{}, {**HOT, "seed": 1}])
def test_finished_grammar_ends_even_where_ends_are_forbidden(
    written: Callable[..., Iterator[tuple[str, bool]]], options: Any
) -> None:
    steps = list(written(40, forbid_end=True, grammar='root ::= "yes"', **options))
    assert steps[-1] == ("yes", True)
    assert [ended for _, ended in steps[:-1]] == [False] * (len(steps) - 1)
    longer = list(written(40, forbid_end=True, grammar='root ::= "yes"+', **options))
    assert len(longer) == 40  # it can go on, so it must


def test_shortcut_among_the_likeliest_changes_no_choice(fed: LlamaRunner) -> None:
    """The few likeliest tokens settle it only where all tokens would have given the same."""
    settled = 0
    for seed in range(200):
        row(fed)[:] = np.random.default_rng(seed).standard_normal(len(row(fed)), dtype=np.float32) * 4
        grammar = ["root ::= [a-m]*", "root ::= [a-zA-Z ]*", 'root ::= "e"*', "root ::= [^\\n]*"][seed % 4]
        for options in ({}, {**HOT, "top_k": 5}, {**EVERYTHING, "repetition_penalty": 1.0, "dry_multiplier": 0.0}):
            choices = []
            for shortcut in (True, False):
                with closing(fed.sampler(sampling(grammar=grammar, **{**options, "seed": seed}), TEXT)) as sampler:
                    settled += bool(sampler._enough)
                    if not shortcut:
                        sampler._enough = 0
                    choices.append([fed.sample(0, sampler, False).token for _ in range(2)])
            assert choices[0] == choices[1], (seed, options)
    assert settled > 200


@pytest.mark.parametrize("more", [{}, {"xtc_probability": 0.7, "xtc_threshold": 0.01}, {"min_p": 0.1}, {"top_k": 9}])
def test_grammar_that_allows_all_changes_no_draw(fed: LlamaRunner, llama: Models, more: dict[str, Any]) -> None:
    """XTC, for one, leaves its candidates elsewhere in the array."""
    plain = [token for token in range(llama["dense"].n_vocab) if llama["dense"].token_bytes(token).isalpha()]
    row(fed)[:] = -100.0
    row(fed)[plain] = np.random.default_rng(1).standard_normal(len(plain), dtype=np.float32)
    options = {**FREE, "seed": 1, **more}
    drawn = tokens(fed, 100, **options)
    assert len(set(drawn)) > 3
    assert tokens(fed, 100, **options, grammar="root ::= [^\\x00]*") == drawn


def test_control_tokens_do_not_pass_for_text_under_a_grammar(fed: LlamaRunner, llama: Models) -> None:
    """A grammar reads `<|im_start|>` as these letters, but the answer would have nothing."""
    (control,) = llama["dense"].tokenize("<|im_start|>", add_special=False, parse_special=True)
    likely = bias((control, 100.0))
    assert tokens(fed, **likely) == [control]
    for options in ({}, {**HOT, "seed": 1}):
        assert control not in tokens(fed, 5, **options, **likely, grammar="root ::= [^\\x00]*")


def test_grammar_that_no_token_continues(
    written: Callable[..., Iterator[tuple[str, bool]]], llama: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = llama["dense"]
    with_b = [token for token in range(model.n_vocab) if b"b" in model.token_bytes(token)]
    monkeypatch.setitem(model.__dict__, "suppressed_tokens", tuple(with_b))
    for options in ({}, {**HOT, "seed": 1}):
        steps = written(40, grammar='root ::= "a" "b"', **options)
        assert next(steps) == ("a", False)
        with pytest.raises(BadRequest, match="the grammar has come to a point where no token of the model goes on"):
            next(steps)


def test_constraint_that_was_not_applied_is_refused(fed: LlamaRunner) -> None:
    with pytest.raises(EngineFailure, match="json_schema has not been made a grammar"):
        draw(fed, json_schema='{"type": "object"}')


NO_GRAMMARS = {
    "empty": "",
    "no root": 'other ::= "a"',
    "unknown rule": "root ::= other",
    "left recursion": 'root ::= root "a" | "b"',
    "left recursion through another": 'root ::= x "a"\nx ::= root | "b"',
    "open bracket": "root ::= [a-",
    "open parenthesis": "root ::= (((",
    "open quote": 'root ::= "a',
    "text": "certainly not a grammar",
    "zero byte": "\0",
    "beyond 2000 repetitions": 'root ::= "a"{5000}',
    "lone operator": "root ::= * +",
}


@pytest.mark.parametrize("name", NO_GRAMMARS)
def test_text_that_is_no_grammar(child: Child, dense_path: str, name: str) -> None:
    """In a process of its own: none of these may end it."""
    done = child(CHILD.format(path=dense_path, grammar=NO_GRAMMARS[name]))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("BadRequest the grammar can't be read: "), done.stdout
    assert not done.stdout.endswith("it gave no reason\n")


ATTACKS = {
    **NO_GRAMMARS,
    "counts that end before they begin: llama.cpp never comes back": 'root ::= "a"{3,1}',
    "nested so deep that llama.cpp's stack overflows": f'root ::= {"(" * 20_000}"a"{")" * 20_000}',
    "so many repetitions that llama.cpp's stack overflows": 'root ::= ("a"{1000}){1000}',
    "megabytes": f'root ::= "{"a" * 2**20}"',
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_do_not_reach_llama_cpp(name: str) -> None:
    """What `constrain` makes of a client's text is all that a sampler ever gets."""
    with pytest.raises(BadRequest, match=r"^grammar"):
        gbnf_of(GRAMMAR, ATTACKS[name])


CHILD = """
from pathlib import Path
from llamacpp_backend.engine.runner import Chunk
from llamacpp_backend.errors import BackendError
from llamacpp_backend.llama.model import Model
from llamacpp_backend.llama.runner import ContextOptions, LlamaRunner
from llamacpp_backend.parameters import parse_sampling
model = Model(Path({path!r}), lambda _level, _line: None)
runner = LlamaRunner(model, ContextOptions(n_ctx=256))
runner.decode([Chunk(0, [5], 0, True)])
sampling = parse_sampling({{"temperature": 0.0}}, {{}}, 256)
object.__setattr__(sampling, "grammar", {grammar!r})
try:
    sampler = runner.sampler(sampling, [5])
    print("token", runner.sample(0, sampler, False).token)
except BackendError as error:
    print(type(error).__name__, error)
"""


FUZZ = """
import random
from dataclasses import fields
from pathlib import Path
from llamacpp_backend.engine.runner import Chunk
from llamacpp_backend.errors import BadRequest
from llamacpp_backend.llama.model import Model
from llamacpp_backend.llama.runner import ContextOptions, LlamaRunner
from llamacpp_backend.parameters import parse_sampling
model = Model(Path({path!r}), lambda _level, _line: None)
runner = LlamaRunner(model, ContextOptions(n_ctx=256, n_slots=4))
random = random.Random({seed})
ends = dict(
    max_tokens=[1, 256], temperature=[0, 0.001, 0.5, 10], top_k=[-1, 0, 1, 2, 40, 10**6], top_p=[1e-6, 0.5, 1],
    min_p=[0, 1e-6, 0.5, 1], typical_p=[1e-6, 0.5, 1], top_n_sigma=[-1, 0, 1e-6, 1, 100],
    repetition_penalty=[0.01, 0.5, 1, 1.5, 10], presence_penalty=[-2, 0, 2], frequency_penalty=[-2, 0, 2],
    penalty_last_n=[-1, 0, 1, 64, 256], dry_multiplier=[0, 1e-6, 1, 10], dry_base=[1, 1.75, 10],
    dry_allowed_length=[0, 1, 2, 256], dry_penalty_last_n=[-1, 0, 1, 64, 256],
    dry_sequence_breakers=[[], ["\\n"], ["a", "\\u00e9" * 20, "x" * 40]], xtc_probability=[0, 0.5, 1],
    xtc_threshold=[0, 0.1, 0.5, 1], mirostat=[0, 1, 2], mirostat_tau=[1e-6, 5, 100], mirostat_eta=[1e-6, 0.1, 1],
    logit_bias=[{{}}, {{"0": 100.0, "1": -100.0}}, {{str(t): -100.0 for t in range(0, 1000, 7)}}],
    seed=[None, 0, 1, 2**32 - 2], logprobs=[None, 0, 1, 20],
    grammar=[None] * 6 + ["root ::= [a-z]*", 'root ::= "a"?', "root ::= [^a]+", 'root ::= (["x] | "yes")+'],
)
assert set(ends) <= {{field.name for field in fields(parse_sampling({{}}, {{}}, 256))}}
for number in range({rounds}):
    chosen = {{name: random.choice(values) for name, values in ends.items() if random.random() < 0.5}}
    sampling = parse_sampling({{name: value for name, value in chosen.items() if value is not None}}, {{}}, 256)
    prompt = [random.randrange(model.n_vocab) for _ in range(random.randint(1, 60))]
    slot = number % 4
    runner.clear(slot)
    runner.decode([Chunk(slot, prompt, 0, True)])
    try:
        sampler = runner.sampler(sampling, prompt)
        for step in range(8):
            token = runner.sample(slot, sampler, random.random() < 0.3).token
            assert 0 <= token < model.n_vocab, chosen
            if token in model.end_tokens:
                break
            runner.decode([Chunk(slot, [token], len(prompt) + step, True)])
    except BadRequest as error:
        assert "no token of the model goes on" in str(error), error
    if random.random() < 0.8:
        sampler.close()
print("survived")
"""


@pytest.fixture(scope="module")
def dense_path(llama: Models) -> str:
    return str(llama["dense"].path)


@pytest.mark.parametrize("seed", range(3))
def test_no_parameters_end_the_process(child: Child, dense_path: str, seed: int) -> None:
    done = child(FUZZ.format(path=dense_path, seed=seed, rounds=300))
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr


def test_fuzz_covers_every_parameter_that_reaches_llama_cpp() -> None:
    elsewhere = {"min_tokens", "stop", "ignore_eos", "n", "json_schema", "timeout_ms", "cache_prompt"}
    covered = set(re.findall(r"^\s*(\w+)=|, (\w+)=\[", FUZZ, re.MULTILINE))
    assert {parameter.name for parameter in PARAMETERS} - elsewhere <= {name for pair in covered for name in pair}
