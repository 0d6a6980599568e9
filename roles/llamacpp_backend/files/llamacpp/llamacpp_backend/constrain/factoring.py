"""Branches that begin alike get their common beginning taken out: `"ab" | "ac"` becomes `"a" ("b" | "c")`."""

from __future__ import annotations

from collections.abc import Sequence as List

from .beginnings import Beginnings
from .expression import NOTHING, Choice, Literal, Node, Reference, Repeat, Rules, Sequence, choice, sequence

_MAX_DEPTH = 16  # of branches inside branches: the rest stays as it is
_MAX_INLINED = 2_000  # rules whose body takes the place of their name, in one grammar


def factored(rules: Rules) -> dict[str, Node]:
    """The same grammar with fewer branches that begin alike."""
    worker = _Factoring(rules)
    return {name: worker.node(node) for name, node in rules.items()}


class _Factoring:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._beginnings = Beginnings(rules)
        self._inlined = 0

    def node(self, node: Node, depth: int = 0) -> Node:
        match node:
            case Choice(branches):
                return self._choice(branches, depth)
            case Sequence(items):
                return sequence(*(self.node(item, depth) for item in items))
            case Repeat(item, least, most):
                return Repeat(self.node(item, depth), least, most)
            case _:
                return node

    def _choice(self, branches: List[Node], depth: int) -> Node:
        if depth == _MAX_DEPTH:
            return choice(branches)
        done: list[Node] = []
        for group in self._beginnings.groups(branches):
            done += [self.node(group[0], depth + 1)] if len(group) == 1 else self._group(group, depth)
        return choice(done)

    def _group(self, branches: List[Node], depth: int) -> List[Node]:
        """Branches that begin alike, as fewer ones where that is possible."""
        heads = _by_head(branches)
        if len(heads) > 1:  # behind the names of rules and inside of branches there may be more in common
            heads = _by_head([opened for branch in branches for opened in self._opened(branch)])
        if all(len(members) == 1 for members in heads.values()):
            return [self.node(branch, depth + 1) for branch in branches]
        return [self._factor(key, members, depth) for key, members in heads.items()]

    def _factor(self, key: Node | str, members: List[tuple[Node, ...]], depth: int) -> Node:
        """Branches with the same head: a literal that begins with the character `key`, or the node `key`."""
        if len(members) == 1:
            return self.node(sequence(*members[0]), depth + 1)
        if not isinstance(key, str):
            rests = [sequence(*rest) for _, *rest in members]
            return sequence(self.node(key, depth + 1), self._choice(tuple(dict.fromkeys(rests)), depth + 1))
        texts = [head.text for head, *_ in members if isinstance(head, Literal)]
        common = _common_beginning(texts)
        rests = [sequence(text[len(common) :], *rest) for text, (_, *rest) in zip(texts, members, strict=True)]
        return sequence(common, self._choice(tuple(dict.fromkeys(rests)), depth + 1))

    def _opened(self, branch: Node) -> List[Node]:
        """The branch with what stands at its head opened: the name of a rule, or further branches."""
        head, *rest = _items(branch)
        if isinstance(head, Reference) and self._inlined < _MAX_INLINED:
            self._inlined += 1
            body = self._rules[head.name]
            bodies = body.branches if isinstance(body, Choice) else (body,)
            return [opened for body in bodies for opened in self._opened(sequence(body, *rest))]
        if isinstance(head, Choice) and self._inlined < _MAX_INLINED:
            self._inlined += len(head.branches)
            return [opened for inner in head.branches for opened in self._opened(sequence(inner, *rest))]
        return [branch]


def _by_head(branches: List[Node]) -> dict[Node | str, list[tuple[Node, ...]]]:
    """The items of each branch, by the first of them; literals by their first character."""
    heads: dict[Node | str, list[tuple[Node, ...]]] = {}
    for items in map(_items, branches):
        head = items[0]
        heads.setdefault(head.text[0] if isinstance(head, Literal) and head.text else head, []).append(items)
    return heads


def _items(node: Node) -> tuple[Node, ...]:
    return (node.items or (NOTHING,)) if isinstance(node, Sequence) else (node,)


def _common_beginning(texts: List[str]) -> str:
    shortest, longest = min(texts), max(texts)
    same = next((at for at, char in enumerate(shortest) if char != longest[at]), len(shortest))
    return shortest[:same]
