"""The variables page, the argument specs and the roles' defaults say the same."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[3]
ROLES = sorted(path.parents[1].name for path in REPOSITORY.glob("roles/*/tasks/main.yml"))

spec = importlib.util.spec_from_file_location("make_variables", REPOSITORY / "docs" / "make_variables.py")
assert spec is not None
assert spec.loader is not None
make_variables = importlib.util.module_from_spec(spec)
sys.modules["make_variables"] = make_variables
spec.loader.exec_module(make_variables)


def test_the_page_is_made_from_the_specs_as_they_are() -> None:
    assert make_variables.PAGE.read_text(encoding="utf-8") == make_variables.page(), "run `make docs`"


@pytest.mark.parametrize("role", ROLES)
def test_defaults_and_spec_agree(role: str) -> None:
    """Same names, and where the default is a plain value, the same value."""
    path = REPOSITORY / "roles" / role / "defaults" / "main.yml"
    defaults = (yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None) or {}
    options = make_variables.specs()[role].get("options", {})
    required = {name for name, option in options.items() if option.get("required")}
    assert set(defaults) == set(options) - required
    for name, value in defaults.items():
        if not (isinstance(value, str) and "{{" in value):
            assert options[name].get("default") == value, name


@pytest.mark.parametrize("role", ROLES)
def test_public_variables_carry_the_name_of_their_role(role: str) -> None:
    assert [name for name in make_variables.specs()[role].get("options", {}) if not name.startswith(role)] == []
