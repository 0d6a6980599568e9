"""docs/constraints.md names the keywords and the bounds that the converter has."""

from __future__ import annotations

import re
from pathlib import Path

from llamacpp_backend.constrain import compiling, expression, gbnf, objects, schema, width
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
    words = (
        f"{MAX_CONSTRAINT_BYTES:,} bytes, parentheses {gbnf.MAX_DEPTH} deep, repetitions of {expression.MAX_COUNT:,}, "
    )
    assert words + f"{compiling.MAX_PARTS} rules" in " ".join(PAGE.split())
