"""Patterns: the same strings as Python's re, written as JSON; what can't be followed in one way is refused by name."""

from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llamacpp_backend.constrain.patterns import pattern_node
from llamacpp_backend.errors import BadRequest

from tests.unit.constrain.language import fits, sample

PATTERNS = [
    r"^$",
    r"^abc$",
    r"^[a-c]+$",
    r"^[^a-c]{2}$",
    r"^a?b*c+$",
    r"^(foo|foe|bar)$",
    r"^(?:ab|cd){2,3}$",
    r"^\d{3}-\d{4}$",
    r"^[A-Z]{2}(-[0-9]{1,3})?$",
    r"^\w+@\w+\.(com|org)$",
    r"^.{0,3}$",
    r"^\"\\\/$",
    r"^[\"\\]+x$",
    r"^a{2,}$",
    r"^(a|b(c|d)?)e$",
    r"^[-a]+$",
    r"^[a\-z]$",
    r"^\S\D\W$",
    r"^\x41\u0042\t$",
    r"^a\$$",
    r"^\\$",
    "^é[à-ü]😀$",
]
ALPHABET = 'abcdefoxrz019-_@. "\\/AB\té😀$\n'


@pytest.mark.parametrize("pattern", PATTERNS)
def test_same_strings_as_re(pattern: str) -> None:
    rules = {"root": pattern_node(pattern)}
    compiled = re.compile(pattern.replace("$$", "$\\Z"), re.ASCII)
    chance = random.Random(1)
    texts = ["".join(chance.choices(ALPHABET, k=chance.randint(0, 6))) for _ in range(400)]
    texts += ["foo", "foe", "bar", "abcd", "ababab", "123-4567", "DE-12", "a@b.com"]
    texts += ['"\\/', "aa", "be", "bce", "a$", "é", "éà😀"]
    for text in texts:
        written = json.dumps(text, ensure_ascii=False)[1:-1]
        assert fits(rules, written) == bool(compiled.fullmatch(text)), text


def test_blanks_are_those_of_javascript() -> None:
    rules = {"root": pattern_node(r"^\s$")}
    assert all(fits(rules, char) for char in (" ", "\\t", "\\n", "\u00a0", "\u2003", "\u3000", "\ufeff"))
    assert not any(fits(rules, char) for char in ("a", "\u200b", "\\\\", ""))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_fits_is_json_and_matches(pattern: str) -> None:
    rules = {"root": pattern_node(pattern)}
    chance = random.Random(2)
    for _ in range(50):
        text = json.loads(f'"{sample(rules, chance)}"')
        assert re.fullmatch(pattern, text, re.ASCII), text


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("abc", "is not anchored"),
        ("^abc", "is not anchored"),
        ("abc$", "is not anchored"),
        ("", "is not anchored"),
        ("^", "is not anchored"),
        (r"^abc\$", "is not anchored"),
        ("^a|b$", "has alternatives outside of a group"),
        ("^a)$", "has an unmatched )"),
        ("^(a$", "has an unmatched ("),
        ("^[a$", "has an unmatched ["),
        ("^[]$", "has an empty []"),
        ("^*a$", "has * with nothing before it"),
        ("^a**$", "has a lazy, possessive or repeated repetition"),
        ("^a*?$", "has a lazy, possessive or repeated repetition"),
        ("^a{2}{3}$", "has a lazy, possessive or repeated repetition"),
        ("^a{1001}$", "has a repetition of more than 1000 times"),
        ("^a{99999999999}$", "has a repetition of more than 1000 times"),
        ("^a{3,2}$", "has a repetition from high to low"),
        ("^a{,2}$", "has { that begins no repetition"),
        ("^a{x}$", "has { that begins no repetition"),
        ("^a{2$", "has { that begins no repetition"),
        (r"^(?=a)$", "has a group that begins with (?"),
        (r"^(?<n>a)$", "has a group that begins with (?"),
        (r"^(a)\1$", r"has the escape \1"),
        (r"^\bfoo$", r"has the escape \b"),
        (r"^\p{L}$", r"has the escape \p"),
        (r"^\xg0$", r"has \x without 2 hex digits"),
        (r"^\ud800$", "has half of a surrogate pair"),
        ("^a^b$", "has ^ inside"),
        ("^a$b$", "has $ inside"),
        ("^[z-a]$", "has a range from high to low"),
        (r"^[\d-z]$", "has a range that does not go from one character to another"),
        ("^" + "(" * 17 + "a" + ")" * 17 + "$", "has more than 16 groups inside each other"),
        (r"^[\x01]$", "has a class of characters that JSON text can't hold"),
        ("^(a|ab)(b|c)?$", "is ambiguous"),
        ("^a*a$", "is ambiguous: what follows a repeated or optional part can begin as that part does"),
        ("^(a*)*$", "is ambiguous: what is repeated or optional can itself be empty"),
        ("^(a?){1000}$", "is ambiguous: what is repeated or optional can itself be empty"),
        ('^.*"$', "is ambiguous"),
        ("^(a|[a-z])b$", "is ambiguous: two alternatives can begin with the same character"),
        ("^(a+|b)+$", "is ambiguous"),
    ],
)
def test_refused(pattern: str, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        pattern_node(pattern)
    assert str(caught.value).startswith(words)


@given(st.text("^$ab()[]{}*+?|\\.,-019d", max_size=20))
def test_any_text_is_taken_or_refused(text: str) -> None:
    try:
        node = pattern_node(f"^{text}$")
    except BadRequest:
        return
    written = sample({"root": node}, random.Random(3))
    assert re.fullmatch(f"^{text}$", json.loads(f'"{written}"'), re.ASCII)
