"""Which names may become part of a URL. Triton had code execution through crafted names (CVE-2025-23316)."""

from __future__ import annotations

import re

from tritonctl.errors import BadInput

ENGINE_SUFFIX = "_stream"
MAX_MODEL_NAME = 64
_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_RULE = "letters, digits, '_', '.', '-', not starting with '.' or '-'"


def check_unit_name(name: str) -> str:
    """Return the name of a Triton model if it is well-formed, else raise BadInput."""
    if len(name) > MAX_MODEL_NAME + len(ENGINE_SUFFIX) or not _PATTERN.fullmatch(name):
        raise BadInput(f"{name!r} is not a name of a Triton model (allowed: {_RULE})")
    return name


def check_model_name(name: str) -> str:
    """Return the client name of a model if it is well-formed, else raise BadInput."""
    if len(name) > MAX_MODEL_NAME or not _PATTERN.fullmatch(name):
        raise BadInput(f"{name!r} is not a model name (allowed: 1 to {MAX_MODEL_NAME} of {_RULE})")
    if name.endswith(ENGINE_SUFFIX):
        raise BadInput(
            f"{name!r} names an engine: use the model's name, {name.removesuffix(ENGINE_SUFFIX)!r}, "
            "which stands for all of its units"
        )
    return name


def model_of(unit: str) -> str:
    """The client name that a unit belongs to: `demo` for `demo_stream` and for `demo`."""
    return unit.removesuffix(ENGINE_SUFFIX) or unit
