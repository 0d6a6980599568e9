"""What the roles deploy, read from the roles: versions, digests, compile flags, locks."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.cache import CACHE, REPOSITORY
from roles.llama_cpp_python.filter_plugins.locks import lock_without
from roles.llama_cpp_python.filter_plugins.wheel_store import stored_wheel

ROLES = REPOSITORY / "roles"
LOCKS = ROLES / "llama_cpp_python" / "files"


@dataclass(frozen=True)
class LlamaCpp:
    """The llama-cpp-python of the product: which sources, and how they are compiled."""

    version: str
    sdist_sha256: str
    cpu_target: str
    cmake: tuple[str, ...]


@dataclass(frozen=True)
class TritonWheel:
    """The Triton of the product."""

    package: str
    version: str
    sha256: str
    triton: str
    bundled_libpython: str  # its own libpython that the distribution's must take the place of; empty: none


def llama_cpp() -> LlamaCpp:
    """Read the role's defaults: version, CPU target, flags."""
    facts, defaults = _role("llama_cpp_python")
    version, target = defaults["llama_cpp_python_version"], defaults["llama_cpp_python_cpu_target"]
    flags = facts["__llama_cpp_python_cmake"] + facts["__llama_cpp_python_cpu_targets"][target]["cmake"]
    return LlamaCpp(version, facts["__llama_cpp_python_versions"][version], target, tuple(flags))


def triton_wheel() -> TritonWheel:
    """Read the role's defaults: which wheel the server comes from."""
    facts, defaults = _role("triton_server")
    release = facts["__triton_server_releases"][str(defaults["triton_server_version"])]
    bundled = release["bundled_libpython"].get(python_version(), "")
    return TritonWheel(release["package"], release["package_version"], release["sha256"], release["triton"], bundled)


def release_wheels() -> list[tuple[str, Path, str]]:
    """The wheels of a release's venv that the store must have: requirement, file and sha256. Raises SystemExit."""
    facts, _ = _role("llama_cpp_python")
    sources = llama_cpp()
    wanted: list[dict[str, Any]] = [
        {
            "name": "llama-cpp-python",
            "version": sources.version,
            "sdist_sha256": sources.sdist_sha256,
            "python": "py3",
            "arch": "x86_64",
            "cpu_target": sources.cpu_target,
            "options": list(sources.cmake),
            "recipe": facts["__llama_cpp_python_recipe"],
        }
    ]
    wanted += facts["__llama_cpp_python_source_only"].get(python_version(), [])
    found = [stored_wheel(inputs, str(CACHE / "wheels"), platform.libc_ver()[1]) for inputs in wanted]
    for wheel in found:
        if not wheel["ready"]:
            name = f"{wheel['wanted']['name']} {wheel['wanted']['version']}"
            raise SystemExit(f"bench: {CACHE}/wheels has no {name} for this machine: `make scenario-default` builds it")
    return [(f"{one['wanted']['name']}=={one['wanted']['version']}", Path(one["path"]), one["sha256"]) for one in found]


def release_lock() -> str:
    """The lock of a release's venv, less what comes from the store."""
    built = {requirement.partition("==")[0] for requirement, _, _ in release_wheels()} - {"llama-cpp-python"}
    return lock_without((LOCKS / "release.txt").read_text(encoding="utf-8"), built)


def python_version() -> str:
    """Major and minor version of the distribution's Python, which .venv is made with as a release's venv is."""
    return ".".join(platform.python_version_tuple()[:2])


def _role(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A role's vars and defaults, templates unrendered."""
    facts, defaults = (
        yaml.safe_load((ROLES / name / part / "main.yml").read_text(encoding="utf-8")) for part in ("vars", "defaults")
    )
    return facts, defaults
