"""JSON objects: named properties in their order, some of them optional, maybe others behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from dataclasses import dataclass

from ..errors import BadRequest
from .expression import NOTHING, Node, Repeat, all_but, choice, sequence
from .json_text import CHARACTER, SPACE, pair

MAX_KEY_CHARS = 500  # of all properties of an object that others may join

MAX_OPTIONAL = 64  # each may follow each one before it
_IN_A_ROW = 8

AddRule = Callable[[Node], Node]


@dataclass(frozen=True)
class Property:
    """One named property."""

    name: str
    value: Node
    required: bool


def object_node(properties: List[Property], others: Node | None, add_rule: AddRule) -> Node:
    """An object with these properties; `others`: the value of properties with other names, None: there are none.

    `add_rule` gives a node a name and answers with a reference to it.
    """
    optional_ones = sum(not item.required for item in properties)
    if optional_ones > MAX_OPTIONAL:
        raise BadRequest(
            f"json_schema: an object with {optional_ones} optional properties is not supported; allowed are "
            f"{MAX_OPTIONAL}, and any number of required ones"
        )
    endings: list[Node] = [NOTHING]  # of the object behind all its named properties, first or not
    first_endings: list[Node] = [NOTHING]
    if others is not None:
        other = sequence(pair(_other_key([item.name for item in properties], add_rule), others), SPACE)
        more = Repeat(sequence(",", SPACE, other), 0, None)
        endings.append(sequence(",", SPACE, other, more))
        first_endings.append(sequence(other, more))
    # What may follow property i - 1: made from the last one to the first, as each holds those behind it.
    tails: dict[int, Node] = {len(properties): choice(endings)}
    for index in range(len(properties) - 1, 0, -1):
        branches = [sequence(",", SPACE, branch) for branch in _next_ones(properties, index, tails)]
        optional = not any(item.required for item in properties[index:])
        tail = choice([*branches, *endings] if optional else branches)
        # Of required properties some in a row stay together, as a rule for each would be hard to read.
        tails[index] = tail if len(branches) == 1 and not optional and index % _IN_A_ROW else add_rule(tail)
    optional = not any(item.required for item in properties)
    first = _next_ones(properties, 0, tails)
    return sequence("{", SPACE, choice([*first, *first_endings] if optional else first), "}")


def _next_ones(properties: List[Property], start: int, tails: Mapping[int, Node]) -> list[Node]:
    """The properties that may come next, each with what may follow it: all up to the first required one."""
    branches: list[Node] = []
    for index in range(start, len(properties)):
        item = properties[index]
        branches.append(sequence(pair(item.name, item.value), SPACE, tails[index + 1]))
        if item.required:
            break
    return branches


def _other_key(names: List[str], add_rule: AddRule) -> Node:
    """A string that is none of the names."""
    if sum(map(len, names)) > MAX_KEY_CHARS:
        raise BadRequest(
            f"json_schema: additionalProperties beside properties whose names have {sum(map(len, names))} characters "
            f"are not supported; allowed are {MAX_KEY_CHARS}"
        )
    plain = [name for name in names if name.isprintable() and not set(name) & set('"\\')]
    return sequence('"', _not_one_of(plain, add_rule))


def _not_one_of(endings: List[str], add_rule: AddRule) -> Node:
    """The rest of a string, its quote included, that is none of the endings."""
    if not endings:
        return sequence(Repeat(CHARACTER, 0, None), '"')
    by_first: dict[str, list[str]] = {}
    for ending in endings:
        if ending:
            by_first.setdefault(ending[0], []).append(ending[1:])
    branches = [sequence(first, add_rule(_not_one_of(rest, add_rule))) for first, rest in by_first.items()]
    branches.append(
        sequence(all_but((0, 0x1F), '"\\', (0x7F, 0x7F), "".join(by_first)), Repeat(CHARACTER, 0, None), '"')
    )
    if "" not in endings:
        branches.append(sequence('"'))
    return choice(branches)
