"""Jinja filters over the controller's store of built wheels.

A wheel lies at ``<store>/<key>/<sha256>/<file>.whl``, its manifest at ``<store>/<key>/manifest.json``. The
manifest is written last and by a rename, so a wheel is there whole or not at all. It holds all inputs of the
build (``wanted``), the version of the C library that it was built with (``glibc``), the path of the file
below the key's directory and its digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError

Wanted = Mapping[str, Any]


def _version(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split("."))
    except ValueError as error:
        raise AnsibleFilterError(f"'{text}' is no version of the C library, as 2.36 is") from error


def wheel_key(wanted: Wanted, glibc: str) -> str:
    """Return the store's directory for a wheel of these inputs, built with this version of the C library."""
    inputs = json.dumps({**wanted, "glibc": glibc}, sort_keys=True)
    digest = hashlib.sha256(inputs.encode()).hexdigest()[:12]
    parts = [
        wanted["name"],
        wanted["version"],
        wanted["python"],
        wanted.get("cpu_target"),
        f"glibc{glibc}",
        digest,
    ]
    return "-".join(str(part) for part in parts if part)


def _fault(directory: Path, manifest: Mapping[str, Any]) -> str:
    """Say why the file of a manifest can't be used; empty when it can."""
    file = directory / manifest["file"]
    if not file.is_file():
        return f"{file} is not there"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != manifest["sha256"]:
        return f"{file} is damaged: its sha256 is {digest}, its manifest says {manifest['sha256']}"
    return ""


def stored_wheel(wanted: Wanted, store: str, glibc: str) -> dict[str, Any]:
    """Look for a wheel of these inputs that a host with this version of the C library can load.

    Returns ``wanted``, ``ready`` (bool), ``faults`` (why stored ones were passed over, for the operator) and,
    when ready, ``path``, ``file`` (its name), ``sha256`` and ``glibc``. Of several the newest C library wins.
    """
    limit = _version(glibc)
    faults: list[str] = []
    found: list[tuple[tuple[int, ...], Path, dict[str, Any]]] = []
    for path in sorted(Path(store).expanduser().glob("*/manifest.json")):
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            if manifest["wanted"] != dict(wanted):
                continue
            floor = _version(manifest["glibc"])
            if floor > limit:
                faults.append(f"{path.parent} needs glibc {manifest['glibc']}, this host has {glibc}")
            elif fault := _fault(path.parent, manifest):
                faults.append(fault)
            else:
                found.append((floor, path.parent / manifest["file"], manifest))
        except (ValueError, KeyError, TypeError) as error:
            faults.append(f"{path} can't be read: {error!r}")
    if not found:
        return {"wanted": dict(wanted), "ready": False, "faults": faults}
    _, file, manifest = max(found, key=lambda entry: entry[0])
    return {
        "wanted": dict(wanted),
        "ready": True,
        "faults": faults,
        "path": str(file),
        "file": file.name,
        "sha256": manifest["sha256"],
        "glibc": manifest["glibc"],
    }


def wheel_jobs(hosts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Decide who builds what: one job per wheel that hosts lack.

    Each host is ``{"host", "glibc", "missing": [wanted, ...], "build_host"}``, a job is
    ``{"wanted", "builder", "leader"}``. The leader is the host of the play that runs the tasks: the builder,
    unless another was declared.
    """
    jobs: dict[str, dict[str, Any]] = {}
    for host in sorted(hosts, key=lambda entry: (_version(entry["glibc"]), entry["host"])):
        for wanted in host["missing"]:
            declared = host["build_host"] if wanted["python"] == "py3" else ""
            job = {"wanted": dict(wanted), "builder": declared or host["host"], "leader": host["host"]}
            jobs.setdefault(json.dumps(wanted, sort_keys=True), job)
    return list(jobs.values())


class FilterModule:
    """Ansible's entry point for the filters of this role."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"stored_wheel": stored_wheel, "wheel_jobs": wheel_jobs, "wheel_key": wheel_key}
