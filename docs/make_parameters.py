"""Writes docs/parameters.md from the backend's own tables: every request parameter and every setting of the engine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

# Plain Python, without llama.cpp or Triton.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "roles" / "llamacpp_backend" / "files" / "llamacpp"))

from llamacpp_backend.parameters import PARAMETERS, Parameter
from llamacpp_backend.settings import SETTINGS

PAGE = Path(__file__).resolve().parent / "parameters.md"

HEAD = """# Parameters and settings

Made by `make docs` from the tables that the backend itself checks against (`parameters.py`, `settings.py`).

## Sampling parameters of a request

Each is either a request parameter or an input tensor of the same name, of this type and shape `[1]` (`[n]` where it
says so), not both. A model's `defaults` in `triton_models` replace these defaults; a request goes before both. As a
request parameter, a list is one string, since Triton takes no lists there.

| name | type | allowed | default | meaning |
|---|---|---|---|---|
"""

SETTINGS_HEAD = """
A value out of range, of another type, NaN or infinity is refused with the parameter's name, the value and what is
allowed (HTTP 400, INVALID_ARGUMENT); so are unknown names, and two parameters that exclude each other.

## Settings of the engine

Keys of `engine` in an entry of `triton_models`. An unknown key or a wrong value is refused before anything is changed
on the host, by name.

| key | allowed | when absent | meaning |
|---|---|---|---|
"""


def row(*cells: str) -> str:
    """A table's row."""
    return f"| {' | '.join(text.replace('|', '&#124;') for text in cells)} |\n"


def default(parameter: Parameter) -> str:
    """The default as JSON would write it; nothing where absence is the default."""
    if parameter.default in (None, ()):
        return ""
    return f"`{json.dumps(parameter.default)}`"


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    for item in PARAMETERS:
        kind = item.data_type.removeprefix("TYPE_").replace("STRING", "BYTES") + (
            " `[n]`" if item.dims == (-1,) else ""
        )
        lines.append(row(f"`{item.name}`", kind, item.rule.allowed(), default(item), item.meaning))
    lines.append(SETTINGS_HEAD)
    for setting in SETTINGS:
        lines.append(row(f"`{setting.name}`", setting.rule.allowed(), setting.default, setting.meaning))
    return "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
