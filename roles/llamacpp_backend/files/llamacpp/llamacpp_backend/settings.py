"""Settings of a model version, read once from its model.json: typed, ranges checked, unknown keys refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import BadRequest, LoadError
from .parameters import SAMPLING_NAMES, parse_sampling

SCHEMA = 1

# Keys of "engine" with their ranges; 0 or absent: computed.
_ENGINE_RANGES: dict[str, tuple[int, int]] = {
    "n_ctx": (16, 1_048_576),
    "n_batch": (16, 8192),
    "n_threads": (1, 512),
    "queue_size": (1, 512),
}


@dataclass(frozen=True)
class Place:
    """Where a model version lies and what it is: `kind` is "engine" or "front"."""

    kind: str
    model_name: str
    version_dir: Path

    @property
    def version(self) -> int:
        """The model's version: its directory's name."""
        return int(self.version_dir.name)


@dataclass(frozen=True)
class EngineSettings:
    """Numbers of the "engine" object; 0 stands for a computed value."""

    n_ctx: int = 0
    n_batch: int = 0
    n_threads: int = 0
    queue_size: int = 0


@dataclass(frozen=True)
class ModelSettings:
    """An engine's model.json."""

    name: str
    version: int
    revision: str
    engine: EngineSettings
    defaults: Mapping[str, object]


def read_engine_settings(path: Path) -> ModelSettings:
    """Read an engine's model.json. Raises LoadError that names the file, the key, the value and what is allowed."""
    data = _read_object(path)
    _refuse_unknown(path, "", data, ("schema", "name", "version", "revision", "engine", "defaults"))
    if data.get("schema") != SCHEMA:
        raise LoadError(f"{path}: schema is {data.get('schema')!r}; this backend reads schema {SCHEMA}")
    name, version, revision = data.get("name"), data.get("version"), data.get("revision")
    if not isinstance(name, str) or not name:
        raise LoadError(f"{path}: name is {name!r}; allowed is a string that is not empty")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise LoadError(f"{path}: version is {version!r}; allowed is an integer of 1 or more")
    if not isinstance(revision, str) or not re.fullmatch(r"[0-9a-f]{12}", revision):
        raise LoadError(f"{path}: revision is {revision!r}; allowed are 12 hexadecimal digits")
    engine = _read_engine(path, _sub_object(path, data, "engine"))
    defaults = _sub_object(path, data, "defaults")
    _refuse_unknown(path, "defaults.", defaults, SAMPLING_NAMES)
    # The context is not known yet: only its upper bound is applied here, the model's own at load.
    check_defaults(path, defaults, engine.n_ctx or _ENGINE_RANGES["n_ctx"][1])
    return ModelSettings(name, version, revision, engine, defaults)


def check_defaults(path: Path, defaults: Mapping[str, object], n_ctx: int) -> None:
    """Check a model's sampling defaults against the context. Raises LoadError."""
    try:
        parse_sampling({}, defaults, n_ctx)
    except BadRequest as error:
        raise LoadError(f"{path}: defaults: {error}") from error


def read_front_settings(path: Path) -> str:
    """Read a front's model.json: the name of the engine's Triton model. Raises LoadError."""
    data = _read_object(path)
    _refuse_unknown(path, "", data, ("engine_model",))
    name = data.get("engine_model")
    if not isinstance(name, str) or not name:
        raise LoadError(f"{path}: engine_model is {name!r}; allowed is the name of the engine's model")
    return name


def _read_engine(path: Path, data: Mapping[str, Any]) -> EngineSettings:
    _refuse_unknown(path, "engine.", data, tuple(_ENGINE_RANGES))
    for key, value in data.items():
        low, high = _ENGINE_RANGES[key]
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not (value == 0 or low <= value <= high):
            raise LoadError(
                f"{path}: engine.{key} is {value!r}; allowed is 0 (computed) or an integer from {low} to {high}"
            )
    return EngineSettings(**data)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LoadError(f"{path}: can't be read: {error.strerror}") from error
    except ValueError as error:
        raise LoadError(f"{path}: is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise LoadError(f"{path}: holds {type(data).__name__}; allowed is a JSON object")
    return data


def _sub_object(path: Path, data: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key, {})
    if not isinstance(value, dict):
        raise LoadError(f"{path}: {key} is {value!r}; allowed is a JSON object")
    return value


def _refuse_unknown(path: Path, prefix: str, data: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    unknown = sorted(set(data) - set(allowed))
    if unknown:
        raise LoadError(f"{path}: unknown key '{prefix}{unknown[0]}'; allowed are {', '.join(allowed)}")
