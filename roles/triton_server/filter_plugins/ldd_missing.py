"""Jinja filter that reads what ldd says about several files and names what the loader did not find."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

HEADER = re.compile(r"^(/.*):$")
ABSENT = re.compile(r"^\s*(\S+) => not found$")
VERSION = re.compile(r"version `([^']+)' not found \(required by ([^)]+)\)")
# ldd also warns about libraries without a run bit; the loader needs none.
HARMLESS = "you do not have execution permission"


def ldd_missing(result: Mapping[str, Any]) -> list[str]:
    """Return one sentence per missing library, symbol version or unreadable file; none when all was found.

    ``result`` is the registered result of ``ldd FILE FILE...`` (keys ``rc``, ``stdout``, ``stderr``).
    """
    wanted_by: dict[str, list[str]] = {}
    faults: list[str] = []
    current = "the file"
    lines = [*str(result.get("stdout", "")).splitlines(), *str(result.get("stderr", "")).splitlines()]
    for line in lines:
        if header := HEADER.match(line):
            current = header.group(1)
        elif absent := ABSENT.match(line):
            users = wanted_by.setdefault(absent.group(1), [])
            if current not in users:
                users.append(current)
        elif version := VERSION.search(line):
            faults.append(f"{version.group(2)} wants {version.group(1)}, which the host's library lacks")
    absences = [f"{library} is missing, wanted by {', '.join(users)}" for library, users in wanted_by.items()]
    faults = absences + faults
    if result.get("rc") != 0 and not faults:
        said = [line.strip() for line in lines if line.strip() and HARMLESS not in line]
        faults.append(f"ldd ended with {result.get('rc')}: {said[-1] if said else 'no output'}")
    return list(dict.fromkeys(faults))


class FilterModule:
    """Ansible's entry point for the filters of this role."""

    def filters(self) -> dict[str, Callable[..., list[str]]]:
        return {"ldd_missing": ldd_missing}
