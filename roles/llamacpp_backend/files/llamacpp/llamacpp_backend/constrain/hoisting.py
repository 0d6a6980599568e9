"""Repetitions and inner choices as rules of their own, so that each can be tried by itself.

What is slow to follow only far into a text would not show when a grammar is tried from its root. And llama.cpp
refuses repetitions inside each other sooner than those of a rule.
"""

from __future__ import annotations

from .expression import CharSet, Choice, Literal, Node, Reference, Repeat, Rules, Sequence


def hoisted(rules: Rules) -> dict[str, Node]:
    """The same grammar with more rules; names that it had stay."""
    worker = _Hoisting(rules)
    for name, node in rules.items():
        worker.rules[name] = worker.inside(node)
    return worker.rules


class _Hoisting:
    def __init__(self, rules: Rules) -> None:
        self._taken = set(rules)
        self.rules: dict[str, Node] = {}

    def inside(self, node: Node) -> Node:
        """The node with its parts hoisted."""
        match node:
            case Sequence(items):
                return Sequence(tuple(map(self._part, items)))
            case Choice(branches):
                return Choice(tuple(map(self._part, branches)))
            case Repeat(item, least, most):
                # llama.cpp counts names that are new to it inside a repetition against its length; one is always there.
                single = isinstance(item, (Literal, CharSet, Reference))
                return Repeat(item if single else self._new_rule(self.inside(item)), least, most)
            case _:
                return node

    def _part(self, node: Node) -> Node:
        match node:
            case Repeat() | Choice():
                return self._new_rule(self.inside(node))
            case Sequence():
                return self.inside(node)
            case _:
                return node

    def _new_rule(self, node: Node) -> Node:
        number = len(self.rules)
        while f"part{number}" in self._taken:
            number += 1
        name = f"part{number}"
        self._taken.add(name)
        self.rules[name] = node
        return Reference(name)
