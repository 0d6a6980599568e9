"""docs/constraints.md names the keywords and the bounds that the converter has."""

from __future__ import annotations

import re
from pathlib import Path

from llamacpp_backend.constrain import checks, compiling, expression, gbnf, objects, schema, trial, width
from llamacpp_backend.constrain.json_text import FORMATS
from llamacpp_backend.constrain.keywords import KNOWN, SILENT
from llamacpp_backend.parameters import MAX_CONSTRAINT_BYTES

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "constraints.md").read_text(encoding="utf-8")


def test_keywords() -> None:
    table = re.search(r"\| any \|.*?\n\n", PAGE, re.DOTALL)
    assert table is not None
    assert set(re.findall(r"`([^`]+)`", table[0])) == (KNOWN - SILENT) | {"number"} | set(FORMATS)


def test_bounds() -> None:
    table = dict(re.findall(r"^\| ([a-z ]+) \| ([^|]+) \|$", PAGE, re.MULTILINE))
    assert table["text"] == f"{MAX_CONSTRAINT_BYTES:,} bytes, {schema.MAX_DEPTH} levels"
    assert table["lengths and counts"] == f"{expression.MAX_COUNT:,}"
    assert table["optional properties of an object"] == str(objects.MAX_OPTIONAL)
    assert table["ways to read a text that are open at once"] == str(width.MAX_WIDTH)
    assert table["steps to read a schema"] == f"{schema.MAX_STEPS:,}"
    assert table["grammar that a constraint becomes"] == (
        f"{compiling.MAX_GBNF_BYTES:,} bytes, {checks.MAX_RULES:,} rules, "
        f"{checks.MAX_ELEMENTS:,} items with repetitions written out"
    )
    assert table["ways to read the beginning of a rule"] == f"{checks.MAX_WAYS:,}"
    assert table["rules that begin with each other"] == str(checks.MAX_CHAIN)
    assert table["time to compile and try a constraint"] == f"{trial.CPU_SECONDS:g} s of CPU"
    assert table["time to test a token"] == f"{trial.MAX_TOKEN_SECONDS * 1e6:g} us on average"
    words = (
        f"{MAX_CONSTRAINT_BYTES:,} bytes, parentheses {gbnf.MAX_DEPTH} deep, repetitions of {expression.MAX_COUNT:,}, "
    )
    assert words + f"{compiling.MAX_PARTS} rules" in " ".join(PAGE.split())
