"""Regular expressions of JSON schemas -> grammars of what stands between the quotes of a JSON string.

The part of the language that can be followed character by character: classes, groups, alternatives, repetitions,
anchored at both ends. What would need a look back or ahead is refused by name.
"""

from __future__ import annotations

import json

from ..errors import BadRequest
from .expression import (
    MAX_COUNT,
    CharSet,
    Choice,
    Literal,
    Node,
    Range,
    Repeat,
    Sequence,
    all_but,
    chars,
    choice,
    merged,
    sequence,
)
from .factoring import factored
from .width import check_pattern

_MAX_GROUPS = 16
_QUOTE = ((ord('"'), ord('"')),)

_DIGITS = chars("_", (48, 57)).ranges[:1]
_WORD = chars("_", (48, 57), (65, 90), (97, 122)).ranges
_BLANK = chars(
    " \t\n\r\f\v", (0xA0, 0xA0), (0xFEFF, 0xFEFF), (0x1680, 0x1680), (0x2000, 0x200A), "\u2028\u2029\u202f\u205f\u3000"
).ranges
_CLASSES = {"d": _DIGITS, "w": _WORD, "s": _BLANK}
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
# Characters that JSON writes with a backslash and one more.
_JSON_ESCAPES = {char: json.dumps(char)[1:-1] for char in '"\\\b\f\n\r\t'}


def pattern_node(pattern: str) -> Node:
    """What fits the pattern, as it is written in JSON, without the quotes. Raises BadRequest."""
    node = factored({"root": _in_json(_Parser(pattern).parse())})["root"]
    try:
        check_pattern(node, _QUOTE)
    except BadRequest as error:
        raise BadRequest(f"is ambiguous: {error}") from error
    return node


class _Parser:
    def __init__(self, pattern: str) -> None:
        backslashes = len(pattern[:-1]) - len(pattern[:-1].rstrip("\\"))
        if not (pattern.startswith("^") and pattern.endswith("$")) or backslashes % 2:
            raise BadRequest("is not anchored; allowed are patterns that begin with ^ and end with $")
        self._text = pattern[1:-1]
        self._at = 0
        self._groups = 0

    def parse(self) -> Node:
        node = self._sequence()
        if self._peek() == "|":
            raise self._error("alternatives outside of a group, to which only one of the anchors belongs")
        if self._at < len(self._text):
            raise self._error("an unmatched )")
        return node

    def _choice(self) -> Node:
        branches = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            branches.append(self._sequence())
        return choice(branches)

    def _sequence(self) -> Node:
        items: list[Node] = []
        while (char := self._peek()) and char not in "|)":
            items.append(self._repeated(self._item()))
        return sequence(*items)

    def _repeated(self, item: Node) -> Node:
        times = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self._peek())
        if times:
            self._at += 1
        elif self._peek() == "{":
            end = self._text.find("}", self._at)
            least_text, comma, most_text = self._text[self._at + 1 : max(end, self._at)].partition(",")
            for digits in (least_text, most_text):
                if digits and not (digits.isascii() and digits.isdigit()):
                    raise self._error("{ that begins no repetition")
                if len(digits) > 4 or int(digits or 0) > MAX_COUNT:
                    raise self._error(f"a repetition of more than {MAX_COUNT} times")
            if not least_text:
                raise self._error("{ that begins no repetition")
            least = int(least_text)
            times = least, int(most_text) if most_text else None if comma else least
            if times[1] is not None and times[1] < least:
                raise self._error("a repetition from high to low")
            self._at = end + 1
        if times is None:
            return item
        if self._peek() and self._peek() in "*+?{":
            raise self._error("a lazy, possessive or repeated repetition")
        if times == (0, 0) or item == Literal(""):
            return Literal("")
        return Repeat(item, *times)

    def _item(self) -> Node:
        char = self._peek()
        self._at += 1
        if char == "(":
            return self._group()
        if char == "[":
            return self._char_class()
        if char == ".":
            return all_but("\n\r\u2028\u2029")
        if char == "\\":
            ranges = self._escape()
            return CharSet(ranges) if len(ranges) > 1 or ranges[0][0] != ranges[0][1] else Literal(chr(ranges[0][0]))
        if char in "^$":
            raise self._error(f"{char} inside")
        if char in "*+?{":
            raise self._error(f"{char} with nothing before it")
        return Literal(char)

    def _group(self) -> Node:
        if self._text.startswith("?:", self._at):
            self._at += 2
        elif self._peek() == "?":
            raise self._error("a group that begins with (?")
        self._groups += 1
        if self._groups > _MAX_GROUPS:
            raise self._error(f"more than {_MAX_GROUPS} groups inside each other")
        node = self._choice()
        self._groups -= 1
        if self._peek() != ")":
            raise self._error("an unmatched (")
        self._at += 1
        return node

    def _char_class(self) -> Node:
        negative = self._peek() == "^"
        self._at += negative
        ranges: list[Range] = []
        while self._peek() != "]":
            part = self._class_part()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                last = self._class_part()
                if len(part) != 1 or len(last) != 1 or part[0][0] != part[0][1] or last[0][0] != last[0][1]:
                    raise self._error("a range that does not go from one character to another")
                if last[0][0] < part[0][0]:
                    raise self._error("a range from high to low")
                part = ((part[0][0], last[0][0]),)
            ranges += part
        self._at += 1
        if not ranges:
            raise self._error("an empty []")
        return all_but(*ranges) if negative else CharSet(merged(ranges))

    def _class_part(self) -> tuple[Range, ...]:
        char = self._peek()
        if not char:
            raise self._error("an unmatched [")
        self._at += 1
        return self._escape() if char == "\\" else ((ord(char), ord(char)),)

    def _escape(self) -> tuple[Range, ...]:
        char = self._peek()
        self._at += 1
        if char.lower() in _CLASSES and char:
            ranges = _CLASSES[char.lower()]
            return ranges if char.islower() else all_but(*ranges).ranges
        length = {"x": 2, "u": 4}.get(char)
        if length:
            digits = self._text[self._at : self._at + length]
            if len(digits) < length or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                raise self._error(f"\\{char} without {length} hex digits")
            self._at += length
            code = int(digits, 16)
            if 0xD800 <= code <= 0xDFFF:
                raise self._error("half of a surrogate pair")
            return ((code, code),)
        if char in _ESCAPES:
            char = _ESCAPES[char]
        elif not char or char.isalnum():
            raise self._error(f"the escape \\{char}")
        return ((ord(char), ord(char)),)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _error(self, what: str) -> BadRequest:
        return BadRequest(f"has {what} (near character {min(self._at, len(self._text)) + 1}), which is not supported")


def _in_json(node: Node) -> Node:
    """The node with its characters written as JSON writes them inside a string."""
    match node:
        case Literal(text):
            return Literal(json.dumps(text, ensure_ascii=False)[1:-1])
        case CharSet(ranges):
            return _set_in_json(ranges)
        case Sequence(items):
            return sequence(*map(_in_json, items))
        case Choice(branches):
            return choice(map(_in_json, branches))
        case Repeat(item, least, most):
            return Repeat(_in_json(item), least, most)
        case _:
            return node


def _set_in_json(ranges: tuple[Range, ...]) -> Node:
    plain = CharSet(tuple(_without(ranges)))
    escaped = [text for char, text in _JSON_ESCAPES.items() if any(low <= ord(char) <= high for low, high in ranges)]
    branches: list[Node] = [plain] if plain.ranges else []
    branches += [Literal(text) for text in escaped]
    if not branches:
        raise BadRequest("has a class of characters that JSON text can't hold")
    return choice(branches)


def _without(ranges: tuple[Range, ...]) -> list[Range]:
    """The ranges without control characters, quotes and backslashes."""
    allowed = all_but((0, 0x1F), '"\\', (0x7F, 0x7F)).ranges
    return [
        (max(low, first), min(high, last))
        for low, high in ranges
        for first, last in allowed
        if max(low, first) <= min(high, last)
    ]
