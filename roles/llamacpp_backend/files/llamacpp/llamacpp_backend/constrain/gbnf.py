"""GBNF text -> rules, within bounds that llama.cpp's own reader does not have: it recurses and expands without end."""

from __future__ import annotations

import re

from ..errors import BadRequest
from ..parameters import MAX_CONSTRAINT_BYTES
from .expression import (
    MAX_CODE_POINT,
    MAX_COUNT,
    NOTHING,
    CharSet,
    Choice,
    Literal,
    Node,
    Range,
    Reference,
    Repeat,
    Sequence,
    all_but,
    merged,
)

MAX_DEPTH = 32

_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[a-zA-Z0-9-]+", re.ASCII)
_COUNTS = re.compile(r"\{[ \t\r\n]*([0-9]+)[ \t\r\n]*(,)?[ \t\r\n]*([0-9]+)?[ \t\r\n]*\}", re.ASCII)
_HEX = {"x": 2, "u": 4, "U": 8}
_PLAIN_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", **{char: char for char in '\\"[]-'}}
_TIMES = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def parse_gbnf(text: str) -> dict[str, Node]:
    """The rules of a grammar. Raises BadRequest that says what is wrong where, and what is allowed."""
    return _Parser(text).rules()


class _Parser:
    def __init__(self, text: str) -> None:
        size = len(text.encode("utf-8"))
        if size > MAX_CONSTRAINT_BYTES:
            raise BadRequest(f"grammar has {size} bytes; allowed are at most {MAX_CONSTRAINT_BYTES}")
        self._text = text
        self._at = 0
        self._depth = 0
        self._repetition: Repeat | None = None  # the one that was read last

    def rules(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        self._skip(_SPACE_AND_LINES)
        while self._at < len(self._text):
            name = self._name()
            if name in rules:
                raise self._error(f"rule '{name}' is there twice; allowed is once")
            self._skip(_SPACE)
            self._expect("::=")
            self._skip(_SPACE_AND_LINES)
            rules[name] = self._choice(nested=False)
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                raise self._error(f"{self._here()} can't stand here; allowed is the end of the line")
            self._skip(_SPACE_AND_LINES)
        return rules

    def _choice(self, *, nested: bool) -> Node:
        branches = [self._sequence(nested=nested)]
        while self._peek() == "|":
            self._at += 1
            self._skip(_SPACE_AND_LINES)
            branches.append(self._sequence(nested=nested))
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def _sequence(self, *, nested: bool) -> Node:
        space = _SPACE_AND_LINES if nested else _SPACE
        items: list[Node] = []
        while (item := self._item(items)) is not None:
            items.append(item)
            self._skip(space)
        return Sequence(tuple(items)) if len(items) != 1 else items[0]

    def _item(self, before: list[Node]) -> Node | None:
        """The next item, None where the sequence ends. A repetition takes its item from `before`."""
        char = self._peek()
        if char == '"':
            return self._literal()
        if char == "[":
            return self._char_set()
        if char == ".":
            self._at += 1
            return all_but()
        if char == "(":
            return self._group()
        if char in _TIMES or char == "{":
            return self._repeat(before)
        if char in ("<", "!"):
            raise self._error("tokens (<...>) can't be named in a grammar; allowed are characters")
        if char and _NAME.match(char):
            return Reference(self._name())
        return None

    def _literal(self) -> Node:
        self._at += 1
        codes: list[str] = []
        while self._peek() != '"':
            codes.append(chr(self._code()))
        self._at += 1
        return Literal("".join(codes))

    def _char_set(self) -> Node:
        self._at += 1
        negative = self._peek() == "^"
        self._at += negative
        ranges: list[Range] = []
        while self._peek() != "]":
            low = high = self._code()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                high = self._code()
            if high < low:
                raise self._error(f"the range from {chr(low)!r} to {chr(high)!r} is empty; allowed is low to high")
            ranges.append((low, high))
        if not ranges:
            raise self._error("[] holds no character; allowed is one or more")
        self._at += 1
        return all_but(*ranges) if negative else CharSet(merged(ranges))

    def _group(self) -> Node:
        if self._depth == MAX_DEPTH:
            raise self._error(f"parentheses are nested more than {MAX_DEPTH} deep; allowed are {MAX_DEPTH}")
        self._depth += 1
        self._at += 1
        self._skip(_SPACE_AND_LINES)
        node = self._choice(nested=True)
        self._expect(")")
        self._repetition = None  # it may be what the parentheses hold
        self._depth -= 1
        return node

    def _repeat(self, before: list[Node]) -> Node:
        if not before or before[-1] == NOTHING:
            raise self._error("there is nothing to repeat here; allowed is a repetition after an item")
        char = self._peek()
        if char in _TIMES:
            self._at += 1
            least, most = _TIMES[char]
        else:
            least, most = self._counts()
        # One repetition right behind another would nest without parentheses.
        if before[-1] is self._repetition:
            raise self._error("a repetition is repeated; allowed is one, or parentheses around the inner one")
        self._repetition = Repeat(before.pop(), least, most)
        return self._repetition

    def _counts(self) -> tuple[int, int | None]:
        match = _COUNTS.match(self._text, self._at)
        if not match:
            raise self._error("{ begins no repetition; allowed are {3}, {3,} and {3,5}")
        for digits in (match[1], match[3] or ""):
            if len(digits) > 4 or (digits and int(digits) > MAX_COUNT):
                raise self._error(f"the repetition {match[0][:40]} is too long; allowed are at most {MAX_COUNT} times")
        least = int(match[1])
        most = int(match[3]) if match[3] else None if match[2] else least
        if most is not None and most < least:
            raise self._error(f"the repetition {match[0][:40]} is empty; allowed is low to high")
        self._at = match.end()
        return least, most

    def _code(self) -> int:
        """One character of a literal or a set."""
        char = self._peek()
        if not char:
            raise self._error("the text ends inside quotes or brackets")
        self._at += 1
        if char != "\\":
            return ord(char)
        kind = self._peek()
        self._at += 1
        if kind in _PLAIN_ESCAPES:
            return ord(_PLAIN_ESCAPES[kind])
        length = _HEX.get(kind, 0)
        digits = self._text[self._at : self._at + length]
        if not length or not re.fullmatch(r"[0-9a-fA-F]+", digits) or len(digits) < length:
            raise self._error(
                rf"\{kind}{digits} is no escape; allowed are \n \r \t \\ \" \[ \] \- \x41 \u0041 \U00000041"
            )
        self._at += length
        code = int(digits, 16)
        if code > MAX_CODE_POINT or 0xD800 <= code <= 0xDFFF:
            raise self._error(f"\\{kind}{digits} is no character")
        return code

    def _name(self) -> str:
        match = _NAME.match(self._text, self._at)
        if not match:
            raise self._error(f"{self._here()} begins no rule; allowed are letters, digits and -")
        self._at = match.end()
        return match[0]

    def _expect(self, token: str) -> None:
        if not self._text.startswith(token, self._at):
            raise self._error(f"{self._here()} stands where {token} must")
        self._at += len(token)

    def _skip(self, space: re.Pattern[str]) -> None:
        match = space.match(self._text, self._at)
        self._at = match.end() if match else self._at

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _here(self) -> str:
        return repr(self._peek()) if self._at < len(self._text) else "the end"

    def _error(self, what: str) -> BadRequest:
        before = self._text[: self._at]
        line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
        return BadRequest(f"grammar, line {line}, column {column}: {what}")
