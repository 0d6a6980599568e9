"""What llama.cpp must not see: each of these has ended or stopped a process that read it."""

from __future__ import annotations

import pytest
from llamacpp_backend.constrain.checks import check, reachable
from llamacpp_backend.constrain.expression import Literal, Node, Reference, Repeat, Sequence
from llamacpp_backend.constrain.gbnf import parse_gbnf
from llamacpp_backend.errors import BadRequest


def refusal(text: str) -> str:
    with pytest.raises(BadRequest) as caught:
        check(parse_gbnf(text))
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('x ::= "a"', "grammar has no rule 'root'"),
        ("", "grammar has no rule 'root'"),
        ("root ::= a b", "grammar, rule 'root': there is no rule 'a'"),
        ('root ::= root "a" | "b"', "grammar, rule 'root': begins with itself (root -> root)"),
        ('root ::= a\na ::= b "x"\nb ::= a | "y"', "grammar, rule 'a': begins with itself (a -> b -> a)"),
        # llama.cpp does not see that `a` can be empty, takes it, and never comes back.
        ('root ::= a root "x" | "y"\na ::= b\nb ::= ""', "grammar, rule 'root': begins with itself (root -> root)"),
        ('root ::= ("a"?)*', "grammar, rule 'root': repeats without end what can be empty"),
        ('root ::= x+\nx ::= y\ny ::= ""', "grammar, rule 'root': repeats without end what can be empty"),
        ('root ::= "a" root', "grammar: no text fits rule 'root' and comes to an end"),
        ('root ::= a\na ::= "x" b\nb ::= "y" a', "grammar: no text fits rule 'root' and comes to an end"),
        (
            'root ::= ("a"{1000}){1000}',
            "grammar has 3002000 items, repetitions written out; allowed are at most 100000",
        ),
        ("root ::= " + '"' + "a" * 60_000 + '"{1000}', "grammar has 60002000 items, repetitions written out"),
        # Each rule leads to the next in two ways: llama.cpp walks all of the 2^40.
        (
            "root ::= r0\n" + "".join(f'r{i} ::= r{i + 1} "a" | r{i + 1} "b"\n' for i in range(40)) + 'r40 ::= "c"',
            "grammar, rule 'r26': there are 16384 ways to read its beginning; allowed are 10000",
        ),
        (
            "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(200)) + 'r200 ::= "c"',
            "grammar, rule 'r99': more than 100 rules begin with each other",
        ),
        ("root ::= " + "(" + " ".join(['"a"?'] * 20) + "){0,1000}", "grammar, rule 'root': there are "),
        ('root ::= "a"' + "".join(f'\nr{i} ::= "a"' for i in range(4000)), "grammar has 4001 rules; allowed are"),
    ],
)
def test_refused(text: str, words: str) -> None:
    assert refusal(text).startswith(words)


@pytest.mark.parametrize(
    "text",
    [
        'root ::= "a" | "b" root',
        'root ::= "q"? "r" a\na ::= root "y" | "z"',
        'root ::= "a"{1000}',
        'root ::= "a"{0,1000} "b"*',
        'root ::= ("a"?){1,3}',
        "root ::= " + "(" * 32 + '"a"' + ")" * 32,
        "root ::= [^a] .",
        'root ::= ""',
    ],
)
def test_taken(text: str) -> None:
    check(parse_gbnf(text))


def test_nesting() -> None:
    node: Node = Literal("a")
    for _ in range(64):
        node = Repeat(node, 1, 2)
    check({"root": Repeat(Literal("a"), 1, 2)})
    with pytest.raises(BadRequest, match="grammar, rule 'root': is nested more than 64 deep"):
        check({"root": Repeat(node, 1, 1)})


def test_ways_of_all_rules_together() -> None:
    rule = parse_gbnf("x ::= " + " | ".join(f'"{number}"' for number in range(200)))["x"]
    few: dict[str, Node] = {"root": rule, **{f"r{i}": Reference("root") for i in range(990)}}
    check(few)
    many = {**few, **{f"x{i}": Reference("root") for i in range(20)}}
    with pytest.raises(BadRequest, match="grammar: its rules have more than 200000 ways to begin"):
        check(many)


def test_reachable() -> None:
    rules: dict[str, Node] = {
        "root": Sequence((Reference("a"), Literal("x"))),
        "a": Reference("b"),
        "b": Literal("b"),
        "c": Reference("a"),
    }
    assert list(reachable(rules)) == ["root", "a", "b"]
