"""GBNF text: what is read, how it is written again, and where what is wrong stands."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llamacpp_backend.constrain import gbnf
from llamacpp_backend.constrain.checks import check
from llamacpp_backend.constrain.compiling import gbnf_of
from llamacpp_backend.constrain.expression import Literal, Reference, Repeat, all_but, chars, render
from llamacpp_backend.constrain.gbnf import parse_gbnf
from llamacpp_backend.constrain.hoisting import hoisted
from llamacpp_backend.errors import BadRequest

from tests.unit.constrain.language import fits

JSON = r"""
# JSON, as grammars are usually written
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""


def test_a_usual_grammar() -> None:
    rules = parse_gbnf(JSON)
    check(rules)
    for text in ("{}", '{ "a": [1, -2.5e3, "x\\u00e9\\n"], "b": {"c": null} } ', '{"😀":"é"}'):
        assert fits(rules, text), text
    for text in ("", "[1]", '{"a"}', '{"a": 01}', '{"a": "\\x"}', '{"a": 1,}'):
        assert not fits(rules, text), text


def test_what_is_written_reads_the_same() -> None:
    rules = parse_gbnf(JSON)
    assert parse_gbnf(render(rules)) == parse_gbnf(render(parse_gbnf(render(rules))))
    for text in ("{}", '{ "a": [1, -2.5e3, "x\\u00e9\\n"]}', '{"a": 01}', "[1]"):
        assert fits(parse_gbnf(render(rules)), text) == fits(rules, text)
        assert fits(parse_gbnf(render(hoisted(rules))), text) == fits(rules, text)


@given(st.text(max_size=8))
def test_any_character_can_be_written(text: str) -> None:
    assert parse_gbnf(render({"root": Literal(text)})) == {"root": Literal(text)}
    if text:
        assert parse_gbnf(render({"root": chars(text)})) == {"root": chars(text)}


def test_forms() -> None:
    assert parse_gbnf('root ::= a-1\na-1::="x" # end\n\n')["root"] == Reference("a-1")
    assert parse_gbnf("root ::= [^a-c]")["root"] == all_but("abc")
    assert parse_gbnf("root ::= [a-]")["root"] == chars("a-")
    assert parse_gbnf(r"root ::= [\]\-\[\\]")["root"] == chars("]-[\\")
    assert parse_gbnf('root ::= "a"{2,5}')["root"] == Repeat(Literal("a"), 2, 5)
    assert parse_gbnf('root ::= "a"{ 2 , }')["root"] == Repeat(Literal("a"), 2, None)
    assert parse_gbnf(r'root ::= "\x41\u0042\U0001F600\t"')["root"] == Literal("AB😀\t")
    assert parse_gbnf("root ::= .")["root"] == all_but()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("root ::= " + "(" * 33 + '"a"' + ")" * 33, "line 1, column 42: parentheses are nested more than 32 deep"),
        ("root ::= " + "(" * 20_000, "line 1, column 42: parentheses are nested more than 32 deep"),
        (
            'root ::= "a"\nx ::= "b"{1001}',
            "line 2, column 10: the repetition {1001} is too long; allowed are at",
        ),
        ('root ::= "a"{1,1001}', "line 1, column 13: the repetition {1,1001} is too long"),
        ('root ::= "a"{1000000000000}', "line 1, column 13: the repetition {1000000000000} is too long"),
        ('root ::= "a"{3,1}', "line 1, column 13: the repetition {3,1} is empty; allowed is low to high"),
        ('root ::= "a"**', "line 1, column 15: a repetition is repeated"),
        ('root ::= "a"{x}', "line 1, column 13: { begins no repetition; allowed are {3}, {3,} and {3,5}"),
        ("root ::= *", "line 1, column 10: there is nothing to repeat here"),
        ('root ::= ""*', "line 1, column 12: there is nothing to repeat here"),
        ("root ::= []", "line 1, column 11: [] holds no character"),
        ("root ::= [z-a]", "line 1, column 14: the range from 'z' to 'a' is empty"),
        ("root ::= [a", "line 1, column 12: the text ends inside quotes or brackets"),
        ('root ::= "a', "line 1, column 12: the text ends inside quotes or brackets"),
        (r'root ::= "\q"', r"line 1, column 13: \q is no escape; allowed are"),
        (r'root ::= "\x4"', r'line 1, column 13: \x4" is no escape'),
        (r'root ::= "\ud800"', r"line 1, column 17: \ud800 is no character"),
        (r'root ::= "\U00110000"', r"line 1, column 21: \U00110000 is no character"),
        ('root ::= ("a"', "line 1, column 14: the end stands where ) must"),
        ('root ::= "a")', "line 1, column 13: ')' can't stand here; allowed is the end of the line"),
        ('root = "a"', "line 1, column 6: '=' stands where ::= must"),
        ('::= "a"', "line 1, column 1: ':' begins no rule"),
        ('root ::= "a"\nroot ::= "b"', "line 2, column 5: rule 'root' is there twice"),
        ("root ::= <think>", "line 1, column 10: tokens (<...>) can't be named in a grammar"),
        ("root ::= !<[5]>", "line 1, column 10: tokens (<...>) can't be named in a grammar"),
    ],
)
def test_refused_with_its_place(text: str, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_gbnf(text)
    assert str(caught.value).startswith(f"grammar, {words}")


def test_too_long() -> None:
    with pytest.raises(BadRequest, match="grammar has 65537 bytes; allowed are at most 65536"):
        parse_gbnf("#" * 65_537)


@given(st.text('root ::=|()[]{}*+?."\\\n#<>a1-^,', max_size=60))
def test_any_text_is_taken_or_refused(text: str) -> None:
    try:
        written, _ = gbnf_of("grammar", f"root ::= {text}")
    except BadRequest:
        return
    check(parse_gbnf(written))


def test_too_many_parts() -> None:
    text = "root ::= " + " ".join(["[a-z]*"] * 500)
    with pytest.raises(BadRequest, match="grammar has 501 rules and inner parts; allowed are at most 500"):
        gbnf_of("grammar", text)


def test_the_serving_process_imports_no_llama_cpp() -> None:
    """Only the trial's process may: a front that did would hold the library's memory."""
    for path in Path(gbnf.__file__).parent.glob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        assert [line for line in lines if line.startswith(("import llama_cpp", "from llama_cpp"))] == [], path
