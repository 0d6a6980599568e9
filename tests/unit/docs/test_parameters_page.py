"""The page of parameters and settings is made from the backend's tables as they are."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

from llamacpp_backend.parameters import SAMPLING_NAMES
from llamacpp_backend.settings import SETTINGS

REPOSITORY = Path(__file__).resolve().parents[3]

spec = importlib.util.spec_from_file_location("make_parameters", REPOSITORY / "docs" / "make_parameters.py")
assert spec is not None
assert spec.loader is not None
make_parameters = importlib.util.module_from_spec(spec)
sys.modules["make_parameters"] = make_parameters
spec.loader.exec_module(make_parameters)


def test_the_page_is_made_from_the_tables_as_they_are() -> None:
    assert make_parameters.PAGE.read_text(encoding="utf-8") == make_parameters.page(), "run `make docs`"


def test_the_page_has_a_row_for_each() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .+ \|$", make_parameters.page(), re.MULTILINE)
    assert rows == [*SAMPLING_NAMES, *(setting.name for setting in SETTINGS)]
