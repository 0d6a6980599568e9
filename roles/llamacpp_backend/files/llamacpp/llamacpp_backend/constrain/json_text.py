"""The parts of JSON itself, as rules: strings, numbers, any value, and the white space between them."""

from __future__ import annotations

import json

from .expression import Node, Reference, Repeat, all_but, chars, choice, sequence
from .numbers import number

_HEX = chars((48, 57), (65, 70), (97, 102))
_DIGIT = chars((48, 57))


def _hex(count: int) -> Node:
    return Repeat(_HEX, count, count)


# At most what a pretty printer writes: a model that may write more goes on with it for ever.
_SPACE = choice([sequence(""), sequence(" "), sequence(Repeat(sequence("\n"), 1, 2), Repeat(chars(" \t"), 0, 20))])

# One character as JSON writes it; of a surrogate pair never a half.
_LOW_SURROGATE = sequence("\\u", chars("Dd"), chars("CDEFcdef"), _hex(2))
_FROM_D = choice([sequence(chars((48, 55)), _hex(2)), sequence(chars("89ABab"), _hex(2), _LOW_SURROGATE)])
_CODE = choice([sequence(chars((48, 57), "ABCEFabcef"), _hex(3)), sequence(chars("Dd"), _FROM_D)])
_CHARACTER = choice(
    [all_but((0, 0x1F), '"\\', (0x7F, 0x7F)), sequence("\\", choice([chars('"\\/bfnrt'), sequence("u", _CODE)]))]
)

SPACE = Reference("space")
CHARACTER = Reference("char")
STRING = Reference("string")
VALUE = Reference("value")
OBJECT = Reference("object")
ARRAY = Reference("array")
NUMBER = Reference("number")
BOOLEAN = choice([sequence("true"), sequence("false")])
NULL = sequence("null")


def listed(opening: str, item: Node, closing: str) -> Node:
    """Any number of items with commas between them."""
    more = Repeat(sequence(",", SPACE, item, SPACE), 0, None)
    return sequence(opening, SPACE, Repeat(sequence(item, SPACE, more), 0, 1), closing)


def pair(key: Node | str, value: Node) -> Node:
    """A key and its value; a key given as a string is written as JSON writes it."""
    written = json.dumps(key, ensure_ascii=False) if isinstance(key, str) else key
    return sequence(written, SPACE, ":", SPACE, value)


RULES: dict[str, Node] = {
    "space": _SPACE,
    "char": _CHARACTER,
    "string": sequence('"', Repeat(CHARACTER, 0, None), '"'),
    "value": choice([OBJECT, ARRAY, STRING, NUMBER, BOOLEAN, NULL]),
    "object": listed("{", pair(STRING, VALUE), "}"),
    "array": listed("[", VALUE, "]"),
    "number": number(above_low=False, below_high=False) or NULL,
}

_YEAR = Repeat(_DIGIT, 4, 4)
_MONTH = choice([sequence("0", chars("123456789")), sequence("1", chars("012"))])
_DAY = choice([sequence("0", chars("123456789")), sequence(chars("12"), _DIGIT), sequence("3", chars("01"))])
_HOUR = choice([sequence(chars("01"), _DIGIT), sequence("2", chars("0123"))])
_MINUTE = sequence(chars("012345"), _DIGIT)
_DATE = sequence(_YEAR, "-", _MONTH, "-", _DAY)
_TIME = sequence(
    _HOUR,
    ":",
    _MINUTE,
    ":",
    _MINUTE,
    Repeat(sequence(".", Repeat(_DIGIT, 1, 9)), 0, 1),
    choice([sequence("Z"), sequence(chars("+-"), _HOUR, ":", _MINUTE)]),
)

# Between the quotes of a string. Other formats are descriptions only, as JSON schema has them by default.
FORMATS: dict[str, Node] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": sequence(_DATE, "T", _TIME),
    "uuid": sequence(_hex(8), "-", _hex(4), "-", _hex(4), "-", _hex(4), "-", _hex(12)),
}
