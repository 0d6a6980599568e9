"""How many ways to read a text a grammar leaves open at once.

llama.cpp follows all of them at once and tests every token of the vocabulary against each. Where branches that begin
alike nest, the ways double with each level until nothing else gets done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from ..errors import BadRequest
from .beginnings import Beginnings, Ranges, overlap
from .expression import Choice, Node, Reference, Repeat, Rules, Sequence, merged

MAX_WIDTH = 128


def check_width(rules: Rules) -> None:
    """Raise BadRequest when more than MAX_WIDTH ways can be open at once, as far as choices go.

    That a repetition or an optional item ends where its neighbour can't begin is taken for granted here: the
    converter writes none that do, and `check_pattern` sees to the rest.
    """
    worker = _Width(rules)
    worker.check_recursion()
    width = worker.of_root()
    if width > MAX_WIDTH:
        raise BadRequest(
            f"json_schema leaves {width} ways open at once to read a text; allowed are {MAX_WIDTH}: "
            "let alternatives (anyOf, oneOf, enum) differ early, by a required property that comes first"
        )


def check_pattern(node: Node, follow: Ranges) -> None:
    """Raise BadRequest unless each character of a text tells which part of the pattern it belongs to.

    `node`: without references; `follow`: the characters that may come after it.
    """
    _check_one_way(node, follow, Beginnings({}))


def _check_one_way(node: Node, follow: Ranges, beginnings: Beginnings) -> None:
    match node:
        case Choice(branches):
            for group in beginnings.groups(branches):
                if len(group) > 1:
                    raise BadRequest("two alternatives can begin with the same character")
            for branch in branches:
                _check_end(branch, follow, merged_firsts(branches, beginnings), beginnings)
                _check_one_way(branch, follow, beginnings)
        case Sequence(items):
            for index, item in enumerate(items):
                ranges, empty = beginnings.of_all(items[index + 1 :])
                _check_one_way(item, merged([*ranges, *follow]) if empty else ranges, beginnings)
        case Repeat(item, least, most):
            ranges, empty = beginnings.of(item)
            if empty:
                raise BadRequest("what is repeated or optional can itself be empty")
            if least != most and overlap(ranges, follow):
                raise BadRequest("what follows a repeated or optional part can begin as that part does")
            _check_one_way(item, merged([*ranges, *follow]) if most is None or most > 1 else follow, beginnings)
        case _:
            pass


def _check_end(branch: Node, follow: Ranges, firsts: Ranges, beginnings: Beginnings) -> None:
    if beginnings.of(branch)[1] and overlap(firsts, follow):
        raise BadRequest("what follows an alternative that can be empty can begin as the other ones do")


def merged_firsts(branches: tuple[Node, ...], beginnings: Beginnings) -> Ranges:
    """First characters of all branches."""
    return merged(part for branch in branches for part in beginnings.of(branch)[0])


class _Width:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._beginnings = Beginnings(rules)
        self._uses: dict[
            str, dict[str, bool]
        ] = {}  # rule -> rules it mentions, whether among branches that begin alike
        for name, node in rules.items():
            uses: dict[str, bool] = {}
            for reference, alike in self._references(node, False):
                uses[reference] = uses.get(reference, False) or alike
            self._uses[name] = uses
        self._component = components({name: set(uses) for name, uses in self._uses.items()})

    def check_recursion(self) -> None:
        """Refuse recursion from among branches that begin alike: each level would multiply the ways."""
        for name, uses in self._uses.items():
            for reference, alike in uses.items():
                if alike and self._component[name] == self._component[reference]:
                    raise BadRequest(
                        "json_schema refers to itself inside alternatives (anyOf, oneOf) that begin alike: let them "
                        "differ early, by a required property that comes first"
                    )

    def of_root(self) -> int:
        """Ways open at once inside the root rule."""
        widths: dict[str, int] = {}
        for name in sorted(self._rules, key=self._component.__getitem__):  # a rule after those that it leads to
            widths[name] = self._of(self._rules[name], name, widths)
        return widths["root"]

    def _of(self, node: Node, rule: str, widths: Mapping[str, int]) -> int:
        match node:
            case Reference(name):
                # Recursion that gets here is one way however deep it goes.
                return 1 if self._component[name] == self._component[rule] else widths[name]
            case Sequence(items):
                return max((self._of(item, rule, widths) for item in items), default=1)
            case Repeat(item):
                return self._of(item, rule, widths)
            case Choice(branches):
                groups = self._beginnings.groups(branches)
                return max(sum(self._of(branch, rule, widths) for branch in group) for group in groups)
            case _:
                return 1

    def _references(self, node: Node, alike: bool) -> Iterator[tuple[str, bool]]:
        match node:
            case Reference(name):
                yield name, alike
            case Sequence(items):
                for item in items:
                    yield from self._references(item, alike)
            case Repeat(item):
                yield from self._references(item, alike)
            case Choice(branches):
                for group in self._beginnings.groups(branches):
                    for branch in group:
                        yield from self._references(branch, alike or len(group) > 1)
            case _:
                pass


def components(uses: Mapping[str, Set[str]]) -> dict[str, int]:
    """For each name the number of its group, in which each name leads to each other one (Tarjan's algorithm).

    A group that leads to another one has the higher number.
    """
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    found: dict[str, int] = {}
    stack: list[str] = []
    for start in uses:
        if start in index:
            continue
        work = [(start, iter(sorted(uses[start])))]
        index[start] = lowest[start] = len(index)
        stack.append(start)
        while work:
            name, following = work[-1]
            for other in following:
                if other not in index:
                    index[other] = lowest[other] = len(index)
                    stack.append(other)
                    work.append((other, iter(sorted(uses[other]))))
                    break
                if other not in found:
                    lowest[name] = min(lowest[name], index[other])
            else:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[name])
                if lowest[name] == index[name]:
                    number = len(found)
                    while True:
                        member = stack.pop()
                        found[member] = number
                        if member == name:
                            break
    return found
