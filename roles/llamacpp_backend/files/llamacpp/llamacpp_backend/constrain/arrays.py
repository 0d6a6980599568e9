"""JSON arrays: some first items, each with a schema of its own, then more of one kind."""

from __future__ import annotations

from collections.abc import Sequence as List

from .expression import NOTHING, Node, Repeat, sequence
from .json_text import SPACE


def array_node(heads: List[Node], item: Node | None, least: int, most: int | None) -> Node:
    """An array that begins with `heads`, as far as it goes, and continues with any `item`; None: with nothing.

    `least`, `most`: how many there are, both kinds together; `most` is not less than the number of `heads`.
    """
    if not heads and (item is None or most == 0):
        return sequence("[", SPACE, "]")
    tail: Node = NOTHING
    if item is not None:
        before = max(1, len(heads))
        rest = sequence(",", SPACE, item, SPACE)
        if most is None or most > before:
            tail = Repeat(rest, max(0, least - before), None if most is None else most - before)
    for index in range(len(heads) - 1, 0, -1):
        tail = sequence(",", SPACE, heads[index], SPACE, tail)
        tail = tail if index < least else Repeat(tail, 0, 1)
    first = sequence(heads[0] if heads else item or NOTHING, SPACE, tail)
    return sequence("[", SPACE, first if least else Repeat(first, 0, 1), "]")
