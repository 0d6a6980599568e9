"""Grammars as data: what a rule may be made of, and how it is written as GBNF."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

MAX_CODE_POINT = 0x10FFFF
MAX_COUNT = 1000  # of repetitions, characters and items, in whichever language a constraint is written

Range: TypeAlias = "tuple[int, int]"  # code points, both ends included


@dataclass(frozen=True, slots=True)
class Literal:
    """Exactly this text; an empty one is no text at all."""

    text: str


@dataclass(frozen=True, slots=True)
class CharSet:
    """One character out of some ranges, which are sorted and do not touch."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of these."""

    branches: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`least` to `most` times; `most` None: without end."""

    item: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Reference:
    """What the rule of this name says."""

    name: str


Node: TypeAlias = "Literal | CharSet | Sequence | Choice | Repeat | Reference"
Rules: TypeAlias = "Mapping[str, Node]"  # the one named `root` is where a text begins

NOTHING = Literal("")


def chars(*parts: str | Range) -> CharSet:
    """A set of characters: each part is a string of single ones or a range of code points."""
    ranges = [part for part in parts if isinstance(part, tuple)]
    ranges += [(ord(char), ord(char)) for part in parts if isinstance(part, str) for char in part]
    return CharSet(merged(ranges))


def all_but(*parts: str | Range) -> CharSet:
    """Every character that can be written in UTF-8, except these."""
    left: list[Range] = []
    start = 0
    for low, high in merged([*chars(*parts).ranges, (0xD800, 0xDFFF)]):
        if start < low:
            left.append((start, low - 1))
        start = high + 1
    if start <= MAX_CODE_POINT:
        left.append((start, MAX_CODE_POINT))
    return CharSet(tuple(left))


def sequence(*items: Node | str) -> Node:
    """One after the other; strings stand for themselves, neighbouring literals are joined."""
    flat: list[Node] = []
    for item in items:
        node = Literal(item) if isinstance(item, str) else item
        for part in node.items if isinstance(node, Sequence) else (node,):
            if isinstance(part, Literal) and flat and isinstance(flat[-1], Literal):
                flat[-1] = Literal(flat[-1].text + part.text)
            elif part != NOTHING:
                flat.append(part)
    return flat[0] if len(flat) == 1 else Sequence(tuple(flat)) if flat else NOTHING


def choice(branches: Iterable[Node]) -> Node:
    """One of the branches, of which equal ones count once."""
    unique = tuple(dict.fromkeys(branches))
    return unique[0] if len(unique) == 1 else Choice(unique)


def merged(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Sorted ranges, those that overlap or touch made one."""
    result: list[Range] = []
    for low, high in sorted(ranges):
        if result and low <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(high, result[-1][1]))
        else:
            result.append((low, high))
    return tuple(result)


def render(rules: Rules) -> str:
    """GBNF text, one rule a line."""
    return "".join(f"{name} ::= {_top(node)}\n" for name, node in rules.items())


def _top(node: Node) -> str:
    return " | ".join(map(_write, node.branches)) if isinstance(node, Choice) else _write(node)


def _write(node: Node) -> str:
    match node:
        case Literal(text):
            return f'"{"".join(map(_escaped, map(ord, text)))}"'
        case CharSet(ranges):
            return f"[{''.join(_range(low, high) for low, high in ranges)}]"
        case Reference(name):
            return name
        case Sequence(items):
            return " ".join(_grouped(item) if isinstance(item, Choice) else _write(item) for item in items)
        case Choice():
            return _grouped(node)
        case Repeat(item, least, most):
            return f"{_atom(item)}{_times(least, most)}"


def _atom(node: Node) -> str:
    """What a repetition can be put behind."""
    return _grouped(node) if isinstance(node, (Choice, Sequence, Repeat)) else _write(node)


def _grouped(node: Node) -> str:
    return f"({_top(node)})"


def _times(least: int, most: int | None) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    return short or (f"{{{least}}}" if least == most else f"{{{least},{'' if most is None else most}}}")


def _range(low: int, high: int) -> str:
    return _escaped(low) if low == high else f"{_escaped(low)}-{_escaped(high)}"


_SHORT = {**{ord(char): f"\\{char}" for char in '"\\[]-'}, 9: r"\t", 10: r"\n", 13: r"\r"}


def _escaped(code: int) -> str:
    """One character inside quotes or brackets; whatever could mean something there is escaped."""
    char = chr(code)
    if code in _SHORT:
        return _SHORT[code]
    if char.isascii() and (char.isalnum() or char in " _,:;.{}()/<>=!?*+#'%&@~|$"):
        return char
    return f"\\x{code:02X}" if code < 0x100 else f"\\U{code:08X}" if code > 0xFFFF else f"\\u{code:04X}"
