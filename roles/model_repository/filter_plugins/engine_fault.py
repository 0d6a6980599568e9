"""Jinja filter that checks a model's `engine` and `defaults` by the backend's own reader."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# The reader is plain Python without llama.cpp or Triton. Two sets of rules would drift apart.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "llamacpp_backend" / "files" / "llamacpp"))

from llamacpp_backend.errors import LoadError
from llamacpp_backend.settings import SCHEMA, read_engine_settings


def engine_fault(entry: Mapping[str, Any]) -> str:
    """Return what is wrong with the entry, in the backend's words; empty when nothing is."""
    model = {
        "schema": SCHEMA,
        "name": "x",
        "version": 1,
        "revision": "0" * 12,
        "engine": entry["engine"],
        "defaults": entry["defaults"],
    }
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.json"
        path.write_text(json.dumps(model), encoding="utf-8")
        try:
            read_engine_settings(path)
        except LoadError as error:
            return str(error).removeprefix(f"{path}: ")
    return ""


class FilterModule:
    """Ansible's entry point for the filters of this role."""

    def filters(self) -> dict[str, Callable[..., str]]:
        return {"engine_fault": engine_fault}
