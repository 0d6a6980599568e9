"""JSON numbers within bounds, as grammars. No two branches begin alike, but where a number ends at its bound."""

from __future__ import annotations

from .expression import NOTHING, CharSet, Node, Repeat, chars, choice, sequence

MAX_DIGITS = 16  # more than a double holds, and an end to a number that a model would go on with for ever

_DIGIT = chars((ord("0"), ord("9")))
_FRACTION = sequence(".", Repeat(_DIGIT, 1, MAX_DIGITS))
_ZERO_FRACTION = sequence(".", Repeat(chars("0"), 1, MAX_DIGITS))
_NONZERO_FRACTION = sequence(
    ".", Repeat(chars("0"), 0, MAX_DIGITS), chars((ord("1"), ord("9"))), Repeat(_DIGIT, 0, MAX_DIGITS)
)


def integer(low: int | None = None, high: int | None = None) -> Node:
    """Integers from `low` to `high`, both included; None: MAX_DIGITS digits. At least one number must be there."""
    bound = 10**MAX_DIGITS - 1
    low, high = (-bound if low is None else low), (bound if high is None else high)
    branches: list[Node] = []
    if low < 0:
        branches.append(sequence("-", _positive(max(1, -high), -low)))
    if low <= 0 <= high:
        branches.append(sequence("0"))
    if high > 0:
        branches.append(_positive(max(1, low), high))
    return choice(branches)


def number(low: int | None = None, high: int | None = None, *, above_low: bool, below_high: bool) -> Node | None:
    """Decimal numbers between bounds, which are excluded where `above_low` and `below_high` say so.

    None when there is no such number. Without any bound exponents are allowed too.
    """
    if low is None and high is None:
        exponent = sequence(chars("eE"), Repeat(chars("+-"), 0, 1), Repeat(_DIGIT, 1, 3))
        whole = choice([sequence("0"), sequence(chars((ord("1"), ord("9"))), Repeat(_DIGIT, 0, MAX_DIGITS - 1))])
        return sequence(Repeat(sequence("-"), 0, 1), whole, Repeat(_FRACTION, 0, 1), Repeat(exponent, 0, 1))
    branches: list[Node] = []
    if low is None or low < 0:
        # Mirrored at zero, which is with the positive ones.
        nearest, open_nearest = (0, True) if high is None or high >= 0 else (-high, below_high)
        farthest = None if low is None else -low
        branches += [sequence("-", node) for node in _magnitudes(nearest, farthest, open_nearest, above_low)]
    if high is None or high >= 0:
        nearest, open_nearest = (0, False) if low is None or low < 0 else (low, above_low)
        branches += _magnitudes(nearest, high, open_nearest, below_high)
    return choice(branches) if branches else None


def _magnitudes(low: int, high: int | None, above_low: bool, below_high: bool) -> list[Node]:
    """Numbers from low to high, of which neither is negative."""
    branches: list[Node] = []
    first_whole = low + above_low
    last_whole = 10**MAX_DIGITS - 1 if high is None else high - 1
    if first_whole <= last_whole:
        branches.append(sequence(integer(first_whole, last_whole), Repeat(_FRACTION, 0, 1)))
    if above_low and (high is None or low < high):
        branches.append(sequence(str(low), _NONZERO_FRACTION))
    if high is not None and not below_high and (low < high or (low == high and not above_low)):
        branches.append(sequence(str(high), Repeat(_ZERO_FRACTION, 0, 1)))
    return branches


def _positive(low: int, high: int) -> Node:
    """Integers from low to high, 1 or more, without leading zeros."""
    return _by_digit(range(1, 10), 0, low, high, len(str(high)) - 1)


def _by_digit(digits: range, prefix: int, low: int, high: int, room: int) -> Node:
    """What may follow a prefix, by its first digit; `room` digits may come after that one."""
    groups: list[tuple[int, int, Node]] = []
    for digit in digits:
        tail = _tail(prefix * 10 + digit, low, high, room)
        if tail is None:
            continue
        if groups and groups[-1][1] == digit - 1 and groups[-1][2] == tail:
            groups[-1] = (groups[-1][0], digit, tail)
        else:
            groups.append((digit, digit, tail))
    return choice(sequence(CharSet(((first + 48, last + 48),)), tail) for first, last, tail in groups)


def _tail(prefix: int, low: int, high: int, room: int) -> Node | None:
    """What may follow the digits of `prefix`; None when no number that begins so lies within the bounds."""
    inside, touching = [], []
    for more in range(room + 1):
        least = prefix * 10**more
        most = least + 10**more - 1
        if low <= least and most <= high:
            inside.append(more)
        if least <= high and low <= most:
            touching.append(more)
    if not touching:
        return None
    if inside == touching:
        return Repeat(_DIGIT, inside[0], inside[-1]) if inside[-1] else NOTHING
    more_digits = _by_digit(range(10), prefix, low, high, room - 1)
    return Repeat(more_digits, 0, 1) if 0 in inside else more_digits
