"""The desired set, /etc/triton/models.json: read and checked to the last key before it is used."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tritonctl.errors import BadInput
from tritonctl.names import check_model_name, check_unit_name

SCHEMA = 1
STATES = ("loaded", "present")
_REVISION = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True)
class Golden:
    """A prompt with the answer it must get: equal to `equals`, or holding `contains`; one of them is None."""

    prompt: str
    equals: str | None
    contains: str | None
    max_tokens: int | None


@dataclass(frozen=True)
class Model:
    """One entry. units: names of its Triton models in load order (they are unloaded in reverse)."""

    name: str
    version: int
    state: str
    revision: str
    units: tuple[str, ...]
    golden: tuple[Golden, ...]


def read(path: str) -> list[Model]:
    """The models of the file, in its order. Raises BadInput with the file, the place and what is allowed."""
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except FileNotFoundError:
        raise BadInput(f"no desired set at {path}: deploy one, or name another by --desired") from None
    except PermissionError:
        raise BadInput(
            f"permission denied for the desired set {path}: run as root or as a member of the group that owns it"
        ) from None
    except OSError as error:
        raise BadInput(f"can't read the desired set {path}: {error.strerror}") from None
    try:
        return parse(raw)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None


def parse(raw: bytes) -> list[Model]:
    """The models of the JSON text `raw`. Raises BadInput."""
    try:
        document = json.loads(raw.decode("utf-8"), object_pairs_hook=_object_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not a JSON document: {error}") from None
    top = _object(document, "the document", required=("schema", "models"))
    if type(top["schema"]) is not int or top["schema"] != SCHEMA:
        raise BadInput(f"schema is {top['schema']!r}, this tritonctl reads {SCHEMA}")
    models = [_model(item, f"models[{i}]") for i, item in enumerate(_list(top["models"], "models"))]
    owners: dict[str, str] = {}
    for model in models:
        for unit in model.units:
            if unit in owners:
                raise BadInput(f"unit {unit!r} is in {owners[unit]!r} and in {model.name!r}, or twice in one")
            owners[unit] = model.name
    return models


def _model(value: object, where: str) -> Model:
    item = _object(value, where, required=("name", "version", "state", "revision", "units"), optional=("golden",))
    name = check_model_name(_text(item["name"], f"{where}.name"))
    if item["state"] not in STATES:
        raise BadInput(f"{where}.state is {item['state']!r}, allowed: {', '.join(STATES)}")
    revision = _text(item["revision"], f"{where}.revision")
    if not _REVISION.fullmatch(revision):
        raise BadInput(f"{where}.revision is {revision!r}, allowed: 12 hexadecimal digits, lower case")
    units = tuple(
        check_unit_name(_text(unit, f"{where}.units[{i}]"))
        for i, unit in enumerate(_list(item["units"], f"{where}.units"))
    )
    if name not in units:
        raise BadInput(f"{where}.units is {list(units)!r}, it must hold the model's own name {name!r}")
    return Model(
        name=name,
        version=_positive(item["version"], f"{where}.version"),
        state=item["state"],
        revision=revision,
        units=units,
        golden=tuple(
            _golden(entry, f"{where}.golden[{i}]")
            for i, entry in enumerate(_list(item.get("golden", []), f"{where}.golden"))
        ),
    )


def _golden(value: object, where: str) -> Golden:
    item = _object(value, where, required=("prompt",), optional=("equals", "contains", "max_tokens"))
    prompt = _text(item["prompt"], f"{where}.prompt")
    expected = {key: _text(item[key], f"{where}.{key}") for key in ("equals", "contains") if key in item}
    if len(expected) != 1:
        raise BadInput(f"{where} must have exactly one of equals, contains; it has {len(expected)}")
    # An empty text is contained in every answer: such a check could never fail.
    if not prompt or expected.get("contains") == "":
        raise BadInput(f"{where}: prompt and contains must not be empty")
    max_tokens = item.get("max_tokens")
    return Golden(
        prompt=prompt,
        equals=expected.get("equals"),
        contains=expected.get("contains"),
        max_tokens=None if max_tokens is None else _positive(max_tokens, f"{where}.max_tokens"),
    )


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key!r} comes twice in one object")
        result[key] = value
    return result


def _object(value: object, where: str, required: Collection[str], optional: Collection[str] = ()) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadInput(f"{where} is {value!r}, it must be an object")
    allowed = [*required, *optional]
    if unknown := sorted(set(value) - set(allowed)):
        raise BadInput(f"{where} has unknown keys: {', '.join(unknown)} (allowed: {', '.join(allowed)})")
    if missing := [key for key in required if key not in value]:
        raise BadInput(f"{where} lacks: {', '.join(missing)}")
    return value


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadInput(f"{where} is {value!r}, it must be a list")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise BadInput(f"{where} is {value!r}, it must be a string")
    return value


def _positive(value: object, where: str) -> int:
    if type(value) is not int or value < 1:
        raise BadInput(f"{where} is {value!r}, it must be an integer of at least 1")
    return value
