"""Jinja filter that names the contents of a directory on the controller by one digest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from ansible.errors import AnsibleFilterError


def tree_digest(root: str) -> str:
    """Return the sha256 (hex) over the relative names, run bits and bytes of all files under ``root``.

    Byte-code caches are left out: they differ from run to run and shape nothing.
    Raises AnsibleFilterError when ``root`` is not a directory with at least one file, because the digest of
    nothing would look like a valid release input.
    """
    base = Path(root)
    files = sorted(path for path in base.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    if not files:
        raise AnsibleFilterError(f"tree_digest: '{root}' holds no files; give a directory of this repository")
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        run_bit = bool(path.stat().st_mode & 0o100)
        digest.update(f"{path.relative_to(base).as_posix()}\0{int(run_bit)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


class FilterModule:
    """Ansible's entry point for the filters of this role."""

    def filters(self) -> dict[str, Callable[..., str]]:
        return {"tree_digest": tree_digest}
