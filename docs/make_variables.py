"""Writes docs/variables.md from the argument specs of the roles: the one place where variables are described."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs" / "variables.md"

HEAD = """# Variables

Made from the roles' `meta/argument_specs.yml` by `make docs`; change them there. Set variables in your inventory
(`inventories/example` shows where). The models themselves are declared in `triton_models`, which the role
`model_repository` takes as `model_repository_models`. A misspelt variable name is not noticed, as in all of Ansible;
a misspelt key inside `triton_models` is.
"""


def specs() -> dict[str, dict[str, Any]]:
    """The options of each role's preflight entry, by role."""
    found = {}
    for path in sorted(REPOSITORY.glob("roles/*/meta/argument_specs.yml")):
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]
        found[path.parents[1].name] = next(iter(entries.values()))
    return found


def plain(description: str | list[str]) -> str:
    """Ansible's markup C(...), V(...) as Markdown code, in one line."""
    text = " ".join([description] if isinstance(description, str) else description)
    return re.sub(r"\b[CVO]\(([^)]*)\)", r"`\1`", " ".join(text.split())).replace("|", "\\|")


def rows(options: dict[str, Any], indent: str = "") -> list[str]:
    """One table row for each option; the options of a dict follow it, with its name in front."""
    lines = []
    for name, option in options.items():
        kind = option["type"] + (f" of {option['elements']}" if "elements" in option else "")
        default = f"`{option['default']!r}`" if "default" in option else "required" if option.get("required") else ""
        choices = f" One of {', '.join(f'`{choice}`' for choice in option['choices'])}." if "choices" in option else ""
        lines.append(f"| `{indent}{name}` | {kind} | {default} | {plain(option['description'])}{choices} |")
        lines += rows(option.get("options", {}), f"{indent}{name}.")
    return lines


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for role, spec in specs().items():
        parts.append(f"\n## {role}\n\n{plain(spec['short_description'])}.\n")
        table = rows(spec.get("options", {}))
        parts.append(
            "\n".join(["", "| variable | type | default | meaning |", "|---|---|---|---|", *table, ""])
            if table
            else "\nNo variables.\n"
        )
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
