"""JSON strings and numbers, by the keywords of their types."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import BadRequest
from ..rules import shown
from .expression import MAX_COUNT, Literal, Node, Repeat, sequence
from .json_text import CHARACTER, FORMATS, STRING
from .numbers import MAX_DIGITS, integer, number
from .patterns import pattern_node

_ANY_NUMBER = 10**MAX_DIGITS - 1


def string_node(words: Mapping[str, Any], place: str) -> Node:
    """Strings, by length, pattern or format."""
    least, most = count(words, "minLength", 0, place), count(words, "maxLength", None, place)
    if "pattern" in words:
        if "minLength" in words or "maxLength" in words:
            raise BadRequest(f"json_schema: pattern and a length at {place} are not supported together; give one")
        if not isinstance(words["pattern"], str):
            raise BadRequest(f"json_schema: pattern at {place} is {shown(words['pattern'])}; allowed is a string")
        try:
            return sequence('"', pattern_node(words["pattern"]), '"')
        except BadRequest as error:
            raise BadRequest(f"json_schema: pattern {shown(words['pattern'])} at {place} {error}") from error
    if most is not None and most < least:
        raise BadRequest(f"json_schema: a string at {place} has {least} to {most} characters; nothing fits")
    if least or most is not None:
        return sequence('"', Repeat(CHARACTER, least, most), '"') if most != 0 else Literal('""')
    form = words.get("format")
    if isinstance(form, str) and form in FORMATS:
        return sequence('"', FORMATS[form], '"')
    return STRING


def number_node(words: Mapping[str, Any], place: str) -> Node:
    """Numbers or, where `type` says so, integers within their bounds."""
    whole = words["type"] == "integer"
    if words.get("multipleOf", 1) != 1 or ("multipleOf" in words and not whole):
        raise BadRequest(f"json_schema: multipleOf at {place} is not supported, but for 1 of an integer")
    low, above = _bound(words, "minimum", "exclusiveMinimum", place)
    high, below = _bound(words, "maximum", "exclusiveMaximum", place)
    node: Node | None
    if whole:
        least = None if low is None else math.floor(low) + 1 if above else math.ceil(low)
        most = None if high is None else math.ceil(high) - 1 if below else math.floor(high)
        least, most = _reachable(least, most)
        fits = max(least or 0, -(most or 0)) <= _ANY_NUMBER and (least is None or most is None or least <= most)
        node = integer(least, most) if fits else None
    else:
        least, most = _reachable(low, high)
        for value in (least, most):
            if value is not None and (value != int(value) or abs(value) > _ANY_NUMBER):
                raise BadRequest(
                    f"json_schema: the bound {shown(value)} of a number at {place} is not supported; allowed are whole "
                    f"ones of at most {MAX_DIGITS} digits"
                )
        bounds = (None if least is None else int(least), None if most is None else int(most))
        node = number(*bounds, above_low=above, below_high=below)
    if node is None:
        raise BadRequest(f"json_schema: no {words['type']} at {place} lies within its bounds")
    return node


def _bound(words: Mapping[str, Any], inclusive: str, exclusive: str, place: str) -> tuple[Any, bool]:
    """The tighter of both bounds, and whether it is excluded itself."""
    for key in (inclusive, exclusive):
        value = words.get(key, 0)
        is_number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
        if isinstance(value, bool) or not is_number:
            raise BadRequest(f"json_schema: {key} at {place} is {shown(value)}; allowed is a number")
    one, other = words.get(inclusive), words.get(exclusive)
    if one is None or other is None:
        return (one, False) if other is None else (other, True)
    excluded = other >= one if inclusive == "minimum" else other <= one
    return (other, True) if excluded else (one, False)


def _reachable(low: Any, high: Any) -> tuple[Any, Any]:
    """The bounds, None for those that no number of MAX_DIGITS digits goes beyond."""
    return (
        None if low is not None and low <= -_ANY_NUMBER else low,
        None if high is not None and high >= _ANY_NUMBER else high,
    )


def count(words: Mapping[str, Any], key: str, default: Any, place: str) -> Any:
    """A number of characters or items; `default` when the schema gives none."""
    value = words.get(key, default)
    if key in words and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT):
        raise BadRequest(
            f"json_schema: {key} at {place} is {shown(value)}; allowed is an integer from 0 to {MAX_COUNT}"
        )
    return value
