"""Every parameter: below, at and above its limits, wrong types, unknown names, defaults, what depends on the model."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llamacpp_backend.errors import BadRequest
from llamacpp_backend.parameters import DEFAULTS, PARAMETERS, SAMPLING_NAMES, Sampling, fit_to_model, parse_sampling
from llamacpp_backend.rules import Number

N_CTX = 2048
# name: values at the limits, values just beyond them
FLOATS: dict[str, tuple[list[float], list[float]]] = {
    "temperature": ([0, 0.0, 10, 10.0], [-0.001, -1, 10.001, 11]),
    "top_p": ([0.000001, 1, 1.0], [0, 0.0, -0.5, 1.001, 2]),
    "min_p": ([0, 0.0, 1, 1.0], [-0.001, 1.001]),
    "typical_p": ([0.000001, 1, 1.0], [0, -0.5, 1.001]),
    "top_n_sigma": ([-1, -1.0, 0, 100.0], [-1.001, 100.001]),
    "repetition_penalty": ([0.01, 1, 10.0], [0, 0.0099, -1, 10.001]),
    "presence_penalty": ([-2, -2.0, 0, 2.0], [-2.001, 2.001]),
    "frequency_penalty": ([-2, -2.0, 0, 2.0], [-2.001, 2.001]),
    "dry_multiplier": ([0, 10.0], [-0.001, 10.001]),
    "dry_base": ([1, 10.0], [0.999, 10.001]),
    "xtc_probability": ([0, 1.0], [-0.001, 1.001]),
    "xtc_threshold": ([0, 1.0], [-0.001, 1.001]),
    "mirostat_tau": ([0.000001, 100.0], [0, -1, 100.001]),
    "mirostat_eta": ([0.000001, 1.0], [0, -1, 1.001]),
}
INTEGERS: dict[str, tuple[list[int], list[int]]] = {
    "max_tokens": ([1, N_CTX], [0, -1, N_CTX + 1, 2**40]),
    "min_tokens": ([0, 256], [-1, N_CTX + 1]),
    "penalty_last_n": ([-1, 0, N_CTX], [-2, N_CTX + 1, 2**31 - 1]),
    "dry_allowed_length": ([0, N_CTX], [-1, N_CTX + 1]),
    "dry_penalty_last_n": ([-1, 0, N_CTX], [-2, N_CTX + 1, 2**31 - 1]),
    "mirostat": ([0, 1, 2], [-1, 3]),
    "n": ([1, 16], [0, -1, 17]),
    "logprobs": ([0, 20], [-2, 21]),
    "timeout_ms": ([0, 86_400_000], [-1, 86_400_001]),
    "top_k": ([-1, 0, 1_000_000], [-2, 1_000_001, 2**63]),
    "seed": ([0, 2**32 - 2], [-1, 2**32 - 1, 2**64]),
}
NUMBERS: dict[str, tuple[list[Any], list[Any]]] = {**FLOATS, **INTEGERS}
FLAGS = ("ignore_eos", "cache_prompt")
STRINGS = {"stop": (16, 256), "dry_sequence_breakers": (16, 40)}
TEXTS = ("json_schema", "grammar")
WRONG_TYPES: list[Any] = [True, False, "1", None, [1], {}, b"1", 1j]


def good() -> list[Any]:
    return [pytest.param(name, value, id=f"{name}={value}") for name in NUMBERS for value in NUMBERS[name][0]]


def bad() -> list[Any]:
    cases: list[tuple[str, object]] = [(name, value) for name in NUMBERS for value in NUMBERS[name][1]]
    cases += [(name, value) for name in NUMBERS for value in (*WRONG_TYPES, math.nan, math.inf, -math.inf)]
    cases += [(name, value) for name in INTEGERS for value in (1.0, 1.5)]
    return [pytest.param(name, value, id=f"{name}={value!r}") for name, value in cases]


def test_every_parameter_is_tested_here() -> None:
    assert {*NUMBERS, *FLAGS, *STRINGS, *TEXTS, "logit_bias"} == set(SAMPLING_NAMES)


def test_every_parameter_is_a_field_and_the_reverse() -> None:
    assert {field.name for field in dataclasses.fields(Sampling)} == set(SAMPLING_NAMES)
    assert len(set(SAMPLING_NAMES)) == len(PARAMETERS)


@pytest.mark.parametrize(
    "parameter", [item for item in PARAMETERS if item.default not in (None, ())], ids=lambda p: p.name
)
def test_default_is_allowed(parameter: Any) -> None:
    assert parameter.rule.check(parameter.name, parameter.default) == parameter.default


KINDS = {
    **dict.fromkeys(FLOATS, ("TYPE_FP32", (1,))),
    **dict.fromkeys(INTEGERS, ("TYPE_INT32", (1,))),
    "seed": ("TYPE_UINT64", (1,)),
    **dict.fromkeys(FLAGS, ("TYPE_BOOL", (1,))),
    **dict.fromkeys(STRINGS, ("TYPE_STRING", (-1,))),
    **dict.fromkeys((*TEXTS, "logit_bias"), ("TYPE_STRING", (1,))),
}


def test_tensor_types() -> None:
    assert {item.name: (item.data_type, item.dims) for item in PARAMETERS} == KINDS


@pytest.mark.parametrize(("name", "value"), good())
def test_allowed(name: str, value: float) -> None:
    parsed = getattr(parse_sampling({name: value}, {}, N_CTX), name)
    assert parsed == value
    assert type(parsed) is (float if name in FLOATS else int)


@pytest.mark.parametrize("name", FLOATS)
def test_bounds_are_allowed_as_fp32_tensors_too(name: str) -> None:
    rule = next(item.rule for item in PARAMETERS if item.name == name)
    assert isinstance(rule, Number)
    for bound in (rule.high, *(() if rule.above_low else (rule.low,))):
        sent = float(np.float32(bound))
        assert getattr(parse_sampling({name: sent}, {}, N_CTX), name) == sent


@pytest.mark.parametrize(("name", "value"), bad())
def test_refused_by_name_value_and_range(name: str, value: object) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_sampling({name: value}, {}, N_CTX)
    message = str(caught.value)
    assert message.startswith(f"{name} is {value!r}; allowed is ")
    assert (" number " if name in FLOATS else " integer ") in message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("max_tokens", "an integer from 1 to 2048 (n_ctx)"),
        ("temperature", "a number from 0 to 10"),
        ("top_p", "a number above 0 to 1"),
        ("top_k", "an integer from -1 to 1000000"),
        ("repetition_penalty", "a number from 0.01 to 10"),
        ("penalty_last_n", "an integer from -1 to 2048 (n_ctx)"),
        ("mirostat", "an integer from 0 to 2"),
        ("seed", "an integer from 0 to 4294967294"),
    ],
)
def test_message_gives_the_range(name: str, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_sampling({name: "x"}, {}, N_CTX)
    assert str(caught.value) == f"{name} is 'x'; allowed is {words}"


def test_unknown_name_lists_what_is_allowed() -> None:
    with pytest.raises(BadRequest) as caught:
        parse_sampling({"temprature": 1}, {}, N_CTX)
    assert str(caught.value) == f"unknown parameter 'temprature'; allowed are {', '.join(SAMPLING_NAMES)}"


def test_long_value_is_shortened() -> None:
    with pytest.raises(BadRequest) as caught:
        parse_sampling({"temperature": "x" * 1_000_000}, {}, N_CTX)
    assert len(str(caught.value)) < 200


def test_integer_of_many_digits_is_shortened() -> None:
    with pytest.raises(BadRequest) as caught:
        parse_sampling({"temperature": 10**4000}, {}, N_CTX)
    assert len(str(caught.value)) < 200


def test_defaults() -> None:
    parsed = parse_sampling({}, {}, N_CTX)
    assert {name: getattr(parsed, name) for name in DEFAULTS} == DEFAULTS
    assert (parsed.seed, parsed.logprobs, parsed.json_schema, parsed.grammar) == (None, None, None, None)
    assert (parsed.temperature, parsed.top_k, parsed.stop, parsed.n) == (0.7, 40, ("</s>", "###"), 1)


def test_request_goes_before_model_and_model_before_built_in() -> None:
    parsed = parse_sampling({"top_k": 1}, {"top_k": 2, "min_p": 0.5, "stop": ["a"]}, N_CTX)
    assert (parsed.top_k, parsed.min_p, parsed.stop, parsed.top_p) == (1, 0.5, ("a",), 0.95)


def test_model_defaults_are_checked_too() -> None:
    with pytest.raises(BadRequest, match="max_tokens is 4096"):
        parse_sampling({}, {"max_tokens": 4096}, N_CTX)
    with pytest.raises(BadRequest, match="unknown parameter 'best_of'"):
        parse_sampling({}, {"best_of": 2}, N_CTX)


def test_small_context_lowers_the_built_in_max_tokens_only() -> None:
    assert parse_sampling({}, {}, 64).max_tokens == 64
    assert parse_sampling({}, {}, 256).max_tokens == 256
    with pytest.raises(BadRequest, match="max_tokens is 65; allowed is an integer from 1 to 64"):
        parse_sampling({"max_tokens": 65}, {}, 64)


@pytest.mark.parametrize("name", STRINGS)
def test_strings(name: str) -> None:
    most, longest = STRINGS[name]
    many = tuple(str(number) for number in range(most))
    for value, expected in [
        ("END", ("END",)),
        (["END"], ("END",)),
        (("a", "b"), ("a", "b")),
        ([], ()),
        ("", ()),
        ([""], ()),
        (["x" * longest], ("x" * longest,)),
        (list(many), many),
    ]:
        assert getattr(parse_sampling({name: value}, {}, N_CTX), name) == expected


@pytest.mark.parametrize("name", STRINGS)
def test_strings_refused(name: str) -> None:
    most, longest = STRINGS[name]
    wrong: list[Any] = [7, None, True, ["a", 1], {"a": 1}, b"a"]
    for value, words in [
        (["", "a"], "has a string of 0 characters"),
        (["", ""], "has a string of 0 characters"),
        (["a", ""], "has a string of 0 characters"),
        (["x" * (longest + 1)], f"has a string of {longest + 1} characters"),
        (["x"] * (most + 1), f"has {most + 1} strings"),
        *((value, f"is {value!r}") for value in wrong),
    ]:
        with pytest.raises(BadRequest) as caught:
            parse_sampling({name: value}, {}, N_CTX)
        expected = f"{name} {words}; allowed are up to {most} strings of 1 to {longest} characters"
        assert str(caught.value) == expected


@pytest.mark.parametrize("name", FLAGS)
def test_flags(name: str) -> None:
    for value in (True, False):
        assert getattr(parse_sampling({name: value}, {}, N_CTX), name) is value
    wrong: list[Any] = [0, 1, "true", None, 1.0, []]
    for value in wrong:
        with pytest.raises(BadRequest) as caught:
            parse_sampling({name: value}, {}, N_CTX)
        assert str(caught.value) == f"{name} is {value!r}; allowed is true or false"


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name: str) -> None:
    for value in ("x", "é" * 32_768):
        assert getattr(parse_sampling({name: value}, {}, N_CTX), name) == value
    assert getattr(parse_sampling({name: ""}, {name: "x"}, N_CTX), name) is None, "an empty one undoes a default"
    with pytest.raises(BadRequest, match=f"^{name} has 65537 bytes; allowed is text of at most 65536 bytes$"):
        parse_sampling({name: "x" * 65_537}, {}, N_CTX)
    with pytest.raises(BadRequest, match=f"^{name} has 65538 bytes; allowed is text of at most 65536 bytes$"):
        parse_sampling({name: "é" * 32_769}, {}, N_CTX)
    with pytest.raises(BadRequest, match=rf"^{name} holds half of a surrogate pair \(\\ud800\)"):
        parse_sampling({name: "\ud800"}, {}, N_CTX)
    wrong: list[Any] = [1, None, True, b"x", ["x"], {}]
    for value in wrong:
        with pytest.raises(BadRequest) as caught:
            parse_sampling({name: value}, {}, N_CTX)
        assert str(caught.value) == f"{name} is {value!r}; allowed is text of at most 65536 bytes"


def test_one_constraint_and_that_of_the_request_goes_before_the_models() -> None:
    with pytest.raises(BadRequest, match=r"^json_schema and grammar are both given; give one of them$"):
        parse_sampling({"json_schema": "{}", "grammar": 'root ::= "a"'}, {}, N_CTX)
    parsed = parse_sampling({"grammar": "g"}, {"json_schema": "{}"}, N_CTX)
    assert (parsed.json_schema, parsed.grammar) == (None, "g")
    parsed = parse_sampling({"json_schema": "{}"}, {"grammar": "g"}, N_CTX)
    assert (parsed.json_schema, parsed.grammar) == ("{}", None)
    assert parse_sampling({"grammar": ""}, {"json_schema": "{}"}, N_CTX).json_schema == "{}"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{}", ()),
        ("", ()),
        ('{"7": 1, "3": -100, "0": 0.5}', ((0, 0.5), (3, -100.0), (7, 1.0))),
        ({"9": 100}, ((9, 100.0),)),
        (json.dumps({str(token): 1 for token in range(1024)}), tuple((token, 1.0) for token in range(1024))),
    ],
)
def test_logit_bias(value: object, expected: tuple[tuple[int, float], ...]) -> None:
    assert parse_sampling({"logit_bias": value}, {}, N_CTX).logit_bias == expected


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("x", "logit_bias is not JSON"),
        ("[" * 60_000, "logit_bias is not JSON"),
        ('{"a": ' * 5_000, "logit_bias is not JSON"),
        ("[]", "logit_bias is '[]'; allowed is JSON text of an object"),
        ("[[1, 2]]", "logit_bias is '[[1, 2]]'; allowed is JSON text of an object"),
        ("7", "logit_bias is '7'; allowed is JSON text of an object"),
        (7, "logit_bias is 7; allowed is JSON text of an object"),
        ([], "logit_bias is []; allowed is JSON text of an object"),
        (None, "logit_bias is None; allowed is JSON text of an object"),
        ('{"-1": 1}', "logit_bias has the key '-1'; allowed are token ids such as '15043'"),
        ('{"01": 1}', "logit_bias has the key '01'"),
        ('{"1.0": 1}', "logit_bias has the key '1.0'"),
        ('{"\u0663": 1}', "logit_bias has the key '\u0663'"),
        ('{"12345678901": 1}', "logit_bias has the key '12345678901'"),
        ('{"hello": 1}', "logit_bias has the key 'hello'"),
        ({7: 1}, "logit_bias has the key 7"),
        ('{"5": 1, "5": 2}', "logit_bias has token 5 twice; give it once"),
        ('{"5": 100.5}', "logit_bias[5] is 100.5; allowed is a number from -100 to 100"),
        ('{"5": -101}', "logit_bias[5] is -101; allowed is a number from -100 to 100"),
        ('{"5": NaN}', "logit_bias[5] is nan; allowed"),
        ('{"5": -Infinity}', "logit_bias[5] is -inf; allowed"),
        ('{"5": true}', "logit_bias[5] is True; allowed"),
        ('{"5": "1"}', "logit_bias[5] is '1'; allowed"),
        ('{"5": {"6": 1}}', "logit_bias[5] is [('6', 1)]; allowed"),
        (json.dumps({str(token): 1 for token in range(1025)}), "logit_bias has 1025 token ids; allowed is"),
        ('{"1": 1' + " " * 65_536 + "}", "logit_bias has 65544 bytes; allowed are at most 65536"),
        ("\ud800", "logit_bias holds half of a surrogate pair"),
    ],
)
def test_logit_bias_refused(value: object, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_sampling({"logit_bias": value}, {}, N_CTX)
    assert str(caught.value).startswith(words)
    assert len(str(caught.value)) < 400


def test_temperatures_too_small_to_divide_by_are_greedy() -> None:
    for value, expected in [(0.0009, 0.0), (1e-300, 0.0), (0.001, 0.001)]:
        assert parse_sampling({"temperature": value}, {}, N_CTX).temperature == expected


def test_logprobs_can_be_undone() -> None:
    assert parse_sampling({"logprobs": -1}, {"logprobs": 5}, N_CTX).logprobs is None
    assert parse_sampling({}, {"logprobs": 5}, N_CTX).logprobs == 5


def test_min_tokens_within_max_tokens() -> None:
    assert parse_sampling({"min_tokens": 9, "max_tokens": 9}, {}, N_CTX).min_tokens == 9
    with pytest.raises(BadRequest, match=r"^min_tokens is 9; allowed is an integer from 0 to 8 \(max_tokens\)$"):
        parse_sampling({"min_tokens": 9, "max_tokens": 8}, {}, N_CTX)
    assert parse_sampling({"max_tokens": 8}, {"min_tokens": 9}, N_CTX).min_tokens == 8, "a default gives way"


def fitted(given: dict[str, Any], n_vocab: int = 100, n_parallel: int = 4, timeout_ms: int = 0) -> Sampling:
    sampling = parse_sampling(given, {}, N_CTX)
    return fit_to_model(sampling, n_vocab=n_vocab, n_parallel=n_parallel, timeout_ms=timeout_ms)


def test_token_ids_are_of_the_vocabulary() -> None:
    assert fitted({"logit_bias": '{"99": 1}'}).logit_bias == ((99, 1.0),)
    with pytest.raises(BadRequest, match=r"^logit_bias has token 100; allowed are token ids from 0 to 99$"):
        fitted({"logit_bias": '{"5": 1, "100": 1}'})


def test_answers_fit_the_engine() -> None:
    assert fitted({"n": 4}).n == 4
    assert fitted({"n": 16}, n_parallel=64).n == 16
    with pytest.raises(BadRequest, match=r"^n is 5; allowed is an integer from 1 to 4 \(n_parallel\)$"):
        fitted({"n": 5})


def test_ceiling_of_the_deadline() -> None:
    assert [fitted({"timeout_ms": value}).timeout_ms for value in (0, 5000)] == [0, 5000]
    assert [fitted({"timeout_ms": value}, timeout_ms=900).timeout_ms for value in (0, 1, 900)] == [900, 1, 900]
    with pytest.raises(
        BadRequest, match=r"^timeout_ms is 901; allowed is .* from 0 to 900 \(the engine's timeout_ms\)$"
    ):
        fitted({"timeout_ms": 901}, timeout_ms=900)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(SAMPLING_NAMES) | st.text(max_size=4), JSON, max_size=4))
def test_any_value_is_taken_within_limits_or_refused(values: dict[str, Any]) -> None:
    try:
        parsed = parse_sampling(values, {}, N_CTX)
    except BadRequest:
        return
    assert 1 <= parsed.max_tokens <= N_CTX
    assert parsed.min_tokens <= parsed.max_tokens
    assert max(parsed.penalty_last_n, parsed.dry_penalty_last_n, parsed.dry_allowed_length) <= N_CTX
    assert all(math.isfinite(getattr(parsed, name)) for name in FLOATS)
