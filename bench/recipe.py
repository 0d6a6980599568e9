"""What the roles deploy, read from the roles: versions, digests, compile flags, locks."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench.cache import CACHE, REPOSITORY

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
    return TritonWheel(release["package"], release["package_version"], release["sha256"], release["triton"])


def stored_wheel(wanted: LlamaCpp) -> Path:
    """The store's wheel of exactly these sources and flags that this machine can load. Raises SystemExit without one."""
    glibc = version_tuple(platform.libc_ver()[1])
    for path in sorted((CACHE / "wheels").glob("*/manifest.json")):
        manifest = json.loads(path.read_text(encoding="utf-8"))
        inputs = manifest["wanted"]
        fits = (
            inputs["name"] == "llama-cpp-python"
            and inputs.get("sdist_sha256") == wanted.sdist_sha256
            and tuple(inputs["options"]) == wanted.cmake
            and version_tuple(manifest["glibc"]) <= glibc
        )
        if fits:
            return path.parent / str(manifest["file"])
    raise SystemExit(
        f"bench: {CACHE}/wheels has no llama-cpp-python {wanted.version} for {wanted.cpu_target} that this machine can "
        "load: run `make scenario-default` once, it builds the wheel"
    )


def version_tuple(text: str) -> tuple[int, ...]:
    """`2.36` as numbers, to be compared."""
    return tuple(map(int, text.split(".")))


def _role(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A role's vars and defaults, templates unrendered."""
    facts, defaults = (
        yaml.safe_load((ROLES / name / part / "main.yml").read_text(encoding="utf-8")) for part in ("vars", "defaults")
    )
    return facts, defaults
