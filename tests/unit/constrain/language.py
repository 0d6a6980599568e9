"""A grammar's language, told plainly: whether a text fits, and texts that do."""

from __future__ import annotations

import random
from collections.abc import Mapping

from llamacpp_backend.constrain.expression import CharSet, Choice, Literal, Node, Reference, Repeat, Sequence

Rules = Mapping[str, Node]


def fits(rules: Rules, text: str) -> bool:
    """Whether the whole text fits the root rule. Follows every way there is."""
    return len(text) in _ends(rules, rules["root"], text, 0)


def _ends(rules: Rules, node: Node, text: str, start: int) -> set[int]:
    """Places at which what begins at `start` may end."""
    match node:
        case Literal(wanted):
            return {start + len(wanted)} if text.startswith(wanted, start) else set()
        case CharSet(ranges):
            inside = start < len(text) and any(low <= ord(text[start]) <= high for low, high in ranges)
            return {start + 1} if inside else set()
        case Reference(name):
            return _ends(rules, rules[name], text, start)
        case Choice(branches):
            return {end for branch in branches for end in _ends(rules, branch, text, start)}
        case Sequence(items):
            places = {start}
            for item in items:
                places = {end for place in places for end in _ends(rules, item, text, place)}
            return places
        case Repeat(item, least, most):
            found: set[int] = {start} if least == 0 else set()
            places, count = {start}, 0
            while places and (most is None or count < most) and count <= len(text) + least:
                places = {end for place in places for end in _ends(rules, item, text, place)}
                count += 1
                if count >= least:
                    if places <= found:
                        break
                    found |= places
            return found


def sample(rules: Rules, chance: random.Random) -> str:
    """A text that fits. Prefers short ones the longer it gets."""
    budget = [200]

    def write(node: Node) -> str:
        budget[0] -= 1
        match node:
            case Literal(text):
                return text
            case CharSet(ranges):
                low, high = chance.choice(ranges)
                return chr(chance.randint(low, min(high, low + 90)))
            case Reference(name):
                return write(rules[name])
            case Sequence(items):
                return "".join(map(write, items))
            case Choice(branches):
                return write(chance.choice(branches) if budget[0] > 0 else _shortest(rules, branches))
            case Repeat(item, least, most):
                high = least if budget[0] <= 0 else min(least + 3, least + 3 if most is None else most)
                return "".join(write(item) for _ in range(chance.randint(least, high)))

    return write(rules["root"])


def _shortest(rules: Rules, branches: tuple[Node, ...]) -> Node:
    """The branch that comes to an end with the fewest further rules."""

    def cost(node: Node, depth: int) -> int:
        match node:
            case Reference(name):
                return 1 + (cost(rules[name], depth - 1) if depth else 1000)
            case Sequence(items):
                return sum(cost(item, depth) for item in items)
            case Choice(inner):
                return min(cost(branch, depth) for branch in inner)
            case Repeat(item, least, _):
                return least and least * cost(item, depth)
            case _:
                return 0

    return min(branches, key=lambda branch: cost(branch, 3))
