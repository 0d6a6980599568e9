"""Ways that stay open at once, and factoring, which leaves the language as it is and fewer ways open."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llamacpp_backend.constrain.beginnings import Beginnings, overlap
from llamacpp_backend.constrain.expression import (
    CharSet,
    Choice,
    Literal,
    Node,
    Reference,
    Repeat,
    choice,
    merged,
    sequence,
)
from llamacpp_backend.constrain.factoring import factored
from llamacpp_backend.constrain.hoisting import hoisted
from llamacpp_backend.constrain.schema import schema_rules
from llamacpp_backend.constrain.width import check_pattern, check_width, components
from llamacpp_backend.errors import BadRequest

from tests.unit.constrain.language import fits

LEAVES = st.sampled_from([Literal("a"), Literal("ab"), Literal("b"), Literal(""), Reference("x"), Reference("y")])
NODES = st.recursive(
    LEAVES | st.just(CharSet(((97, 98),))),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(lambda items: sequence(*items))
        | st.lists(inner, min_size=1, max_size=4).map(choice)
        | inner.map(lambda item: Repeat(item, 0, 2))
    ),
    max_leaves=8,
)
TEXTS = ["".join(letters) for size in range(6) for letters in itertools.product("ab", repeat=size)]


@given(NODES)
def test_factoring_and_hoisting_keep_the_language(node: Node) -> None:
    rules: dict[str, Node] = {
        "root": node,
        "x": choice([Literal("aa"), Literal("ab")]),
        "y": sequence("b", Reference("x")),
    }
    wanted = [text for text in TEXTS if fits(rules, text)]
    assert [text for text in TEXTS if fits(factored(rules), text)] == wanted
    assert [text for text in TEXTS if fits(hoisted(rules), text)] == wanted


@given(st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=30, unique=True))
def test_words_can_be_told_apart_letter_by_letter(words: list[str]) -> None:
    node = choice(map(Literal, (f"{word}." for word in words)))
    check_pattern(factored({"root": node})["root"], ())


def test_rules_at_the_head_are_opened() -> None:
    rules: dict[str, Node] = {
        "root": choice([Reference("x"), Reference("y"), Literal("c")]),
        "x": sequence("a", Reference("z"), "1"),
        "y": sequence("a", Reference("z"), "2"),
        "z": Literal("z"),
    }
    assert factored(rules)["root"] == Choice(
        (sequence("a", Reference("z"), choice([Literal("1"), Literal("2")])), Literal("c"))
    )


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_overlap(one: set[int], other: set[int]) -> None:
    ranges = [merged((value, value) for value in values) for values in (one, other)]
    assert overlap(*ranges) == bool(one & other)


def test_groups_are_joined_by_what_lies_between() -> None:
    branches: list[Node] = [Literal("a"), Literal("c"), Literal("x"), CharSet(((97, 99),))]
    groups = Beginnings({}).groups(branches)
    assert sorted(map(len, groups)) == [1, 3]


@given(st.dictionaries(st.sampled_from("abcdef"), st.sets(st.sampled_from("abcdef")), max_size=6))
def test_components(uses: dict[str, set[str]]) -> None:
    names = set(uses).union(*uses.values()) if uses else set()
    graph = {name: uses.get(name, set()) for name in names}

    def leads_to(start: str) -> set[str]:
        found: set[str] = set()
        todo = [start]
        while todo:
            for other in graph[todo.pop()] - found:
                found.add(other)
                todo.append(other)
        return found

    numbers = components(graph)
    for one, other in itertools.permutations(names, 2):
        together = other in leads_to(one) and one in leads_to(other)
        assert (numbers[one] == numbers[other]) == together
        if other in leads_to(one) and not together:
            assert numbers[one] > numbers[other]


A = CharSet(((97, 97),))  # begins as "a" does, but can't be taken out together with it


def nested(inner: Node, second: Node = A) -> Node:
    """Two alternatives around the same."""
    return choice([sequence("a", inner, "b"), sequence(second, inner, "c")])


def test_recursion_inside_alternatives_that_begin_alike() -> None:
    root = Reference("root")
    with pytest.raises(BadRequest, match="json_schema refers to itself inside alternatives"):
        check_width({"root": choice([nested(root), Literal("x")])})
    check_width({"root": choice([nested(root, Literal("c")), Literal("x")])})


def test_alternatives_inside_alternatives() -> None:
    def doubled(levels: int) -> dict[str, Node]:
        rules: dict[str, Node] = {f"r{level}": nested(Reference(f"r{level + 1}")) for level in range(levels)}
        return {"root": Reference("r0"), **rules, f"r{levels}": Literal("x")}

    check_width(doubled(7))
    with pytest.raises(BadRequest, match="json_schema leaves 256 ways open at once to read a text; allowed are 128"):
        check_width(doubled(8))
    with pytest.raises(BadRequest, match="json_schema leaves 4294967296 ways open"):
        check_width(doubled(32))


def test_a_discriminator_makes_recursion_one_way() -> None:
    def operation(name: str) -> dict[str, object]:
        part = {"$ref": "#/$defs/e"}
        return {
            "type": "object",
            "properties": {"op": {"const": name}, "left": part, "right": part},
            "required": ["op", "left", "right"],
        }

    schema = {"$defs": {"e": {"anyOf": [operation("add"), operation("sub"), {"type": "number"}]}}, "$ref": "#/$defs/e"}
    rules = schema_rules(json.dumps(schema))
    assert fits(rules, '{"op": "add","left": 1,"right": {"op":"sub","left":2,"right":-3}}')
    assert not fits(rules, '{"op": "mul","left": 1,"right": 2}')
