"""What must hold of a grammar before llama.cpp may see it.

llama.cpp compiles a grammar and follows a text by walking its rules without bounds: it goes through the first items
of a rule again for every way that leads there, and keeps a stack for every way in which a text can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set

from ..errors import BadRequest
from .expression import CharSet, Choice, Literal, Node, Reference, Repeat, Rules, Sequence

MAX_RULES = 4_000
MAX_ELEMENTS = 100_000  # characters and references, with repetitions written out
MAX_WAYS = 10_000  # of one rule
MAX_WAYS_IN_ALL = 200_000
MAX_NESTING = 64
MAX_CHAIN = 100  # rules that begin with one another


def check(rules: Rules) -> None:
    """Raise BadRequest that names the rule and what is wrong with it."""
    if "root" not in rules:
        raise BadRequest("grammar has no rule 'root'; that is where a text begins")
    if len(rules) > MAX_RULES:
        raise BadRequest(f"grammar has {len(rules)} rules; allowed are at most {MAX_RULES}")
    for name, node in rules.items():
        for reference in references(node):
            if reference not in rules:
                raise BadRequest(f"grammar, rule '{name}': there is no rule '{reference}'")
        if _nesting(node) > MAX_NESTING:
            raise BadRequest(f"grammar, rule '{name}': is nested more than {MAX_NESTING} deep")
    size = sum(map(_elements, rules.values()))
    if size > MAX_ELEMENTS:
        raise BadRequest(f"grammar has {size} items, repetitions written out; allowed are at most {MAX_ELEMENTS}")
    _Ways(rules).check()
    if "root" not in _closure(rules, _ends):
        raise BadRequest("grammar: no text fits rule 'root' and comes to an end")


def references(node: Node) -> Iterator[str]:
    """Names of the rules that a node mentions."""
    match node:
        case Reference(name):
            yield name
        case Repeat(item):
            yield from references(item)
        case Sequence(parts) | Choice(parts):
            for part in parts:
                yield from references(part)


def reachable(rules: Rules) -> dict[str, Node]:
    """The rules that the root rule leads to."""
    found = {"root"}
    todo = ["root"]
    while todo:
        new = set(references(rules[todo.pop()])) - found
        found |= new
        todo += new
    return {name: node for name, node in rules.items() if name in found}


def _ends(node: Node, ending: Set[str]) -> bool:
    """Whether some finite text fits, when that is so of exactly the rules named in `ending`."""
    match node:
        case Literal():
            return True
        case CharSet(ranges):
            return bool(ranges)
        case Reference(name):
            return name in ending
        case Sequence(items):
            return all(_ends(item, ending) for item in items)
        case Choice(branches):
            return any(_ends(branch, ending) for branch in branches)
        case Repeat(item, least):
            return least == 0 or _ends(item, ending)


def _closure(rules: Rules, holds: Callable[[Node, Set[str]], bool]) -> Set[str]:
    """The least set of rules for which `holds` is true, given that set."""
    users: dict[str, set[str]] = {name: set() for name in rules}
    for name, node in rules.items():
        for reference in references(node):
            users[reference].add(name)
    known: set[str] = set()
    todo = list(rules)
    while todo:
        name = todo.pop()
        if name not in known and holds(rules[name], known):
            known.add(name)
            todo += users[name]
    return known


def _elements(node: Node) -> int:
    """Size of the node once llama.cpp has written out its repetitions."""
    match node:
        case Literal(text):
            return len(text)
        case CharSet(ranges):
            return 2 * len(ranges)
        case Reference():
            return 1
        case Sequence(parts) | Choice(parts):
            return sum(map(_elements, parts)) + len(parts)
        case Repeat(item, least, most):
            return (_elements(item) + 2) * max(1, least if most is None else most)


def _nesting(node: Node) -> int:
    """Depth of the node's parentheses."""
    match node:
        case Repeat(item):
            return 1 + _nesting(item)
        case Sequence(parts) | Choice(parts):
            return 1 + max(map(_nesting, parts), default=0)
        case _:
            return 0


class _Ways:
    """Counts the ways in which llama.cpp comes from the start of an item to a character, or past the item.

    One that comes back to where it started without a character would never end.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._counted: dict[str, tuple[int, int]] = {}
        self._open: list[str] = []

    def check(self) -> None:
        total = 0
        for name in self._rules:
            total += sum(self._rule(name))
            if total > MAX_WAYS_IN_ALL:
                raise BadRequest(f"grammar: its rules have more than {MAX_WAYS_IN_ALL} ways to begin")

    def _rule(self, name: str) -> tuple[int, int]:
        """Ways to a character, and ways past the rule."""
        if name in self._open:
            loop = " -> ".join((*self._open[self._open.index(name) :][:5], name))
            raise BadRequest(f"grammar, rule '{name}': begins with itself ({loop}); allowed is after a character")
        if name not in self._counted:
            if len(self._open) == MAX_CHAIN:
                raise BadRequest(f"grammar, rule '{name}': more than {MAX_CHAIN} rules begin with each other")
            self._open.append(name)
            ways = self._node(name, self._rules[name])
            self._open.pop()
            if sum(ways) > MAX_WAYS:
                raise BadRequest(
                    f"grammar, rule '{name}': there are {sum(ways)} ways to read its beginning; allowed are {MAX_WAYS}"
                )
            self._counted[name] = ways
        return self._counted[name]

    def _node(self, rule: str, node: Node) -> tuple[int, int]:
        match node:
            case Literal(text):
                return (1, 0) if text else (0, 1)
            case CharSet():
                return 1, 0
            case Reference(name):
                return self._rule(name)
            case Choice(branches):
                ways = [self._node(rule, branch) for branch in branches]
                return sum(first for first, _ in ways), sum(past for _, past in ways)
            case Sequence(items):
                first, past = 0, 1
                for item in items:
                    if not past:
                        break  # what comes after a character is not the beginning any more
                    item_first, item_past = self._node(rule, item)
                    first, past = min(first + past * item_first, 2 * MAX_WAYS), min(past * item_past, 2 * MAX_WAYS)
                return first, past
            case Repeat(item, least, most):
                first, past = self._node(rule, item)
                if most is None and past:
                    raise BadRequest(f"grammar, rule '{rule}': repeats without end what can be empty")
                return self._repeated(first, past, least, most)

    def _repeated(self, first: int, past: int, least: int, most: int | None) -> tuple[int, int]:
        """Of a repetition: `least` items one after the other, then optional ones, each inside the one before."""
        total_first, total_past = 0, 1
        optional = 1 if most is None else most - least
        tail_first, tail_past = 0, 1
        for _ in range(optional):
            tail_first, tail_past = first + past * tail_first, past * tail_past + 1
            if tail_first > MAX_WAYS or tail_past > MAX_WAYS:
                break
        for _ in range(least):
            total_first, total_past = total_first + total_past * first, total_past * past
            if not total_past or total_first > MAX_WAYS:
                break
        return total_first + total_past * tail_first, total_past * tail_past
