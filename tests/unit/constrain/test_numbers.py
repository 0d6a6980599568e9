"""Numbers within bounds: exactly those, and never two ways to read one."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llamacpp_backend.constrain.checks import check
from llamacpp_backend.constrain.numbers import MAX_DIGITS, integer, number
from llamacpp_backend.constrain.width import check_pattern, check_width

from tests.unit.constrain.language import fits, sample

SMALL = range(-32, 33)
ANY = 10**MAX_DIGITS - 1


def test_every_small_range_of_integers() -> None:
    for low, high in itertools.combinations_with_replacement(range(-23, 24), 2):
        rules = {"root": integer(low, high)}
        assert [value for value in SMALL if fits(rules, str(value))] == list(range(low, high + 1)), (low, high)


@given(st.integers(-ANY, ANY), st.integers(0, 10**6) | st.integers(0, ANY), st.data())
def test_integers_at_and_around_the_bounds(low: int, width: int, data: st.DataObject) -> None:
    high = min(ANY, low + width)
    rules = {"root": integer(low, high)}
    inside = data.draw(st.integers(low, high))
    assert all(fits(rules, str(value)) for value in (low, high, inside))
    assert not any(fits(rules, str(value)) for value in (low - 1, high + 1, low - 10**5, high + 10**5))
    check_pattern(rules["root"], ())
    value = int(sample(rules, random.Random(low)))
    assert low <= value <= high


@pytest.mark.parametrize(
    ("low", "high"), [(None, None), (0, None), (None, 0), (5, None), (None, -5), (-5, None), (None, 5)]
)
def test_open_ranges(low: int | None, high: int | None) -> None:
    rules = {"root": integer(low, high)}
    for value in (-ANY, -10, -6, -5, -4, -1, 0, 1, 4, 5, 6, 10, 99, 100, ANY):
        assert fits(rules, str(value)) == ((low is None or value >= low) and (high is None or value <= high)), value
    assert not fits(rules, str(ANY + 1))
    assert not fits(rules, str(-ANY - 1))
    check_pattern(rules["root"], ())


@pytest.mark.parametrize("text", ["", "-", "00", "01", "-0", "-01", "+1", "1.0", "1e3", " 1", "1 ", "٣"])
def test_no_integers(text: str) -> None:
    assert not fits({"root": integer()}, text)
    assert not fits({"root": integer(-50, 50)}, text)


NUMBERS = ["0", "0.0", "0.5", "1", "1.0", "1.5", "2", "2.0", "2.000", "2.001"]
NUMBERS += ["2.5", "3", "3.0", "3.1", "9.99", "10", "10.01"]
BOUNDS = [None, -10, -3, -2, 0, 2, 3, 10]


@pytest.mark.parametrize("above_low", [False, True])
@pytest.mark.parametrize("below_high", [False, True])
def test_decimal_ranges(above_low: bool, below_high: bool) -> None:
    for low, high in itertools.product(BOUNDS, BOUNDS):
        if low is not None and high is not None and low > high:
            continue
        node = number(low, high, above_low=above_low, below_high=below_high)
        values = [*NUMBERS, *(f"-{text}" for text in NUMBERS if float(text))]
        wanted = {
            text
            for text in values
            if (low is None or (float(text) > low if above_low else float(text) >= low))
            and (high is None or (float(text) < high if below_high else float(text) <= high))
        }
        assert (node is None) <= (not wanted), (low, high)
        if node is not None:
            rules = {"root": node}
            assert {text for text in values if fits(rules, text)} == wanted, (low, high)
            check(rules)
            check_width(rules)


def test_any_number() -> None:
    node = number(above_low=False, below_high=False)
    assert node is not None
    rules = {"root": node}
    for text in ("0", "-0", "-0.5", "12.25", "1e5", "-1.5E-10", "1e+300", "9" * 16):
        assert fits(rules, text), text
    for text in ("", "-", "01", ".5", "5.", "1e", "1e5000", "+1", "NaN", "9" * 17, "1.5.5"):
        assert not fits(rules, text), text
    check_pattern(node, ())
