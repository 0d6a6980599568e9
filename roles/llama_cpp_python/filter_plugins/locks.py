"""Jinja filters over this role's hash-locked requirements files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from ansible.errors import AnsibleFilterError

FILES = Path(__file__).parent.parent / "files"


def lock_text(name: str) -> str:
    """Return the text of a lock of this role, for example ``release.txt``.

    A file lookup would search the role that runs, and the release's id is computed while another role runs.
    """
    path = FILES / name
    if not path.is_file():
        known = ", ".join(sorted(entry.name for entry in FILES.glob("*.txt")))
        raise AnsibleFilterError(f"lock_text: there is no lock '{name}'; known: {known}")
    return path.read_text(encoding="utf-8")


def lock_version(text: str, package: str) -> str:
    """Return the one version that a lock gives a package. Raises when it has none, or several."""
    versions = re.findall(rf"^{re.escape(package)}==(\S+)", text, re.MULTILINE)
    if len(versions) != 1:
        raise AnsibleFilterError(f"lock_version: {len(versions)} versions of {package} are locked, not one")
    return str(versions[0])


def lock_without(text: str, packages: Iterable[str]) -> str:
    """Return a lock less the entries of these packages. Raises when it has no entry for one of them."""
    for package in packages:
        text, count = re.subn(rf"^{re.escape(package)}==.*\n(?:[ \t].*\n)*", "", text, flags=re.MULTILINE)
        if not count:
            raise AnsibleFilterError(f"lock_without: the lock has no entry for {package}")
    return text


class FilterModule:
    """Ansible's entry point for the filters of this role."""

    def filters(self) -> dict[str, Callable[..., str]]:
        return {"lock_text": lock_text, "lock_version": lock_version, "lock_without": lock_without}
