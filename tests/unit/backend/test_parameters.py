"""Every parameter: below, at and above its limits, wrong types, unknown names, defaults, shapes of `stop`."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llamacpp_backend.errors import BadRequest
from llamacpp_backend.parameters import DEFAULTS, SAMPLING_NAMES, parse_sampling

N_CTX = 2048
# name: values at the limits, values just beyond them
FLOATS: dict[str, tuple[list[float], list[float]]] = {
    "temperature": ([0, 0.0, 10, 10.0], [-0.001, -1, 10.001, 11]),
    "top_p": ([0.000001, 1, 1.0], [0, 0.0, -0.5, 1.001, 2]),
    "min_p": ([0, 0.0, 1, 1.0], [-0.001, 1.001]),
    "repetition_penalty": ([0.000001, 1, 10.0], [0, -1, 10.001]),
    "presence_penalty": ([-2, -2.0, 0, 2.0], [-2.001, 2.001]),
    "frequency_penalty": ([-2, -2.0, 0, 2.0], [-2.001, 2.001]),
}
INTEGERS: dict[str, tuple[list[int], list[int]]] = {
    "max_tokens": ([1, N_CTX], [0, -1, N_CTX + 1, 2**40]),
    "top_k": ([-1, 0, 1_000_000], [-2, 1_000_001, 2**63]),
    "seed": ([0, 2**32 - 2], [-1, 2**32 - 1, 2**64]),
}
NUMBERS: dict[str, tuple[list[Any], list[Any]]] = {**FLOATS, **INTEGERS}


def good() -> list[Any]:
    return [pytest.param(name, value, id=f"{name}={value}") for name in NUMBERS for value in NUMBERS[name][0]]


def bad() -> list[Any]:
    wrong_types: list[Any] = [True, False, "1", None, [1], {}, b"1", 1j]
    cases: list[tuple[str, object]] = [(name, value) for name in NUMBERS for value in NUMBERS[name][1]]
    cases += [(name, value) for name in NUMBERS for value in (*wrong_types, math.nan, math.inf, -math.inf)]
    cases += [(name, value) for name in INTEGERS for value in (1.0, 1.5)]
    return [pytest.param(name, value, id=f"{name}={value!r}") for name, value in cases]


def test_every_parameter_is_tested_here() -> None:
    assert {*NUMBERS, "stop"} == set(SAMPLING_NAMES)


@pytest.mark.parametrize(("name", "value"), good())
def test_allowed(name: str, value: float) -> None:
    parsed = getattr(parse_sampling({name: value}, {}, N_CTX), name)
    assert parsed == value
    assert type(parsed) is (float if name in FLOATS else int)


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
        ("repetition_penalty", "a number above 0 to 10"),
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
    assert {name: getattr(parsed, name) for name in DEFAULTS} == {**DEFAULTS, "stop": ("</s>", "###")}
    assert parsed.seed is None


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


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("END", ("END",)),
        (["END"], ("END",)),
        (("a", "b"), ("a", "b")),
        ([], ()),
        (["x" * 256], ("x" * 256,)),
        ([str(n) for n in range(16)], tuple(str(n) for n in range(16))),
    ],
)
def test_stop_shapes(value: object, expected: tuple[str, ...]) -> None:
    assert parse_sampling({"stop": value}, {}, N_CTX).stop == expected


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", "stop has a string of 0 characters"),
        (["a", ""], "stop has a string of 0 characters"),
        (["x" * 257], "stop has a string of 257 characters"),
        (["x"] * 17, "stop has 17 strings"),
        (7, "stop is 7"),
        (None, "stop is None"),
        (True, "stop is True"),
        (["a", 1], "stop is ['a', 1]"),
        ({"a": 1}, "stop is {'a': 1}"),
        (b"a", "stop is b'a'"),
    ],
)
def test_stop_refused(value: object, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_sampling({"stop": value}, {}, N_CTX)
    assert str(caught.value) == f"{words}; allowed are up to 16 strings of 1 to 256 characters"


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
    assert all(math.isfinite(getattr(parsed, name)) for name in FLOATS)
