#!/usr/bin/python3
"""Refuse tests that are skipped, and lint rules that are silenced, without saying why.

usage: skip_reasons.py [FILE ...]      default: every file that git knows or would add

Python: pytest.skip, xfail, importorskip, the marks skip, skipif, xfail and the skips of unittest need a reason.
YAML: `# noqa: rule` needs a comment before or after it on its line.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# name -> position of the reason among the positional arguments; None: as a keyword only
REASONS = {
    "pytest.skip": 0,
    "pytest.xfail": 0,
    "pytest.importorskip": None,
    "pytest.mark.skip": 0,
    "pytest.mark.skipif": None,
    "pytest.mark.xfail": None,
    "unittest.skip": 0,
    "unittest.skipIf": 1,
    "unittest.skipUnless": 1,
    "unittest.expectedFailure": None,
}
BARE_NOQA = re.compile(r"^(?P<before>.*?)#\s*noqa(?::\s*[\w\[\]-]+(?:[ ,]+[\w-]+\[[\w-]+\])*)?\s*$")


def has_reason(call: ast.Call, position: int | None) -> bool:
    """Whether a call names a reason that is not an empty string."""
    given = [keyword.value for keyword in call.keywords if keyword.arg in ("reason", "msg")]
    if position is not None:
        given += call.args[position : position + 1]
    return any(not (isinstance(value, ast.Constant) and not value.value) for value in given)


def python_faults(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, what) of every skip in a Python text that gives no reason."""
    tree = ast.parse(text)
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (name := ast.unparse(node)) in REASONS:
            call = called.get(id(node))
            if call is None or not has_reason(call, REASONS[name]):
                yield node.lineno, f"{name} without a reason"


def yaml_faults(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, what) of every silenced lint rule in a YAML text that gives no reason."""
    for number, line in enumerate(text.splitlines(), start=1):
        match = BARE_NOQA.match(line)
        if match and "#" not in match["before"]:
            yield number, "noqa without a reason"


CHECKS = {".py": python_faults, ".yml": yaml_faults, ".yaml": yaml_faults}


def main() -> int:
    names = sys.argv[1:]
    if not names:
        listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split("\0")
    faults = 0
    for path in (Path(name) for name in names if name):
        check = CHECKS.get(path.suffix)
        if check is None or not path.is_file():
            continue
        for line, what in check(path.read_text(encoding="utf-8")):
            print(f"{path}:{line}: {what}")
            faults += 1
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
