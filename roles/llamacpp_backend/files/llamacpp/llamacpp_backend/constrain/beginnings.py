"""First characters of what fits a node: two branches that share one are both followed until they part."""

from __future__ import annotations

from collections.abc import Sequence as List

from .expression import CharSet, Choice, Literal, Node, Range, Reference, Repeat, Rules, Sequence, merged

Ranges = tuple[Range, ...]


class Beginnings:
    """Of the nodes of a grammar, whose rules must not begin with themselves (see checks)."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._known: dict[str, tuple[Ranges, bool]] = {}

    def of(self, node: Node) -> tuple[Ranges, bool]:
        """The first characters, and whether the empty text fits too."""
        match node:
            case Literal(text):
                return ((ord(text[0]), ord(text[0])),) if text else (), not text
            case CharSet(ranges):
                return ranges, False
            case Reference(name):
                if name not in self._known:
                    self._known[name] = self.of(self._rules[name])
                return self._known[name]
            case Choice(branches):
                parts = [self.of(branch) for branch in branches]
                return merged(part for ranges, _ in parts for part in ranges), any(empty for _, empty in parts)
            case Repeat(item, least, most):
                ranges, empty = self.of(item)
                return (ranges if most != 0 else ()), empty or least == 0
            case Sequence(items):
                return self.of_all(items)

    def of_all(self, items: List[Node]) -> tuple[Ranges, bool]:
        """The same of nodes that follow each other."""
        found: list[Range] = []
        for item in items:
            ranges, empty = self.of(item)
            found += ranges
            if not empty:
                return merged(found), False
        return merged(found), True

    def groups(self, branches: List[Node]) -> list[list[Node]]:
        """Branches that begin alike, directly or by way of others, together."""
        same: dict[Ranges, list[Node]] = {}
        for branch in branches:
            same.setdefault(self.of(branch)[0], []).append(branch)
        groups: list[tuple[Ranges, list[Node]]] = []
        for ranges, members in same.items():
            alike = [group for group in groups if overlap(group[0], ranges)]
            for group in alike:
                groups.remove(group)
                members = [*group[1], *members]
                ranges = merged([*group[0], *ranges])
            groups.append((ranges, members))
        return [members for _, members in groups]


def overlap(one: Ranges, other: Ranges) -> bool:
    """Whether two sorted sets of characters share one."""
    left, right = 0, 0
    while left < len(one) and right < len(other):
        if one[left][1] < other[right][0]:
            left += 1
        elif other[right][1] < one[left][0]:
            right += 1
        else:
            return True
    return False
