"""Which keywords of JSON schema are understood, which say nothing about the text, and how two schemas become one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import BadRequest

OF_TYPE: dict[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "prefixItems", "additionalItems", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "boolean": frozenset(),
    "null": frozenset(),
}
TYPES = tuple(OF_TYPE)
COMBINING = frozenset({"$ref", "allOf", "anyOf", "oneOf", "enum", "const", "type"})
SILENT = frozenset(
    {
        "$schema",
        "$id",
        "id",
        "$comment",
        "$anchor",
        "$defs",
        "definitions",
        "title",
        "description",
        "default",
        "example",
    }
    | {"examples", "deprecated", "readOnly", "writeOnly", "discriminator", "contentMediaType", "contentEncoding"}
)
KNOWN = COMBINING.union(SILENT, *OF_TYPE.values())

_HIGHER = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems"})
_LOWER = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems"})


def check_keywords(schema: Mapping[str, Any], place: str) -> None:
    """Raise BadRequest that names a keyword which would be ignored silently."""
    for keyword in schema:
        if keyword not in KNOWN and not keyword.startswith("x-"):
            allowed = ", ".join(sorted(KNOWN - SILENT))
            raise BadRequest(f"json_schema: '{keyword[:80]}' at {place} is not supported; supported are {allowed}")


def said(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema without what says nothing about the text."""
    return {key: value for key, value in schema.items() if key not in SILENT and not key.startswith("x-")}


def both(one: Mapping[str, Any], other: Mapping[str, Any], place: str) -> dict[str, Any]:
    """A schema that fits what both schemas fit. Raises BadRequest where that can't be told."""
    result = said(one)
    for key, value in said(other).items():
        if key not in result or result[key] == value:
            result[key] = value
        elif key == "required" and isinstance(value, list) and isinstance(result[key], list):
            result[key] = [*result[key], *(name for name in value if name not in result[key])]
        elif key == "properties" and isinstance(value, dict) and isinstance(result[key], dict):
            result[key] = _all_properties(result[key], value)
        elif key == "type":
            result[key] = _common_types(result[key], value, place)
        elif key in _HIGHER and _are_numbers(value, result[key]):
            result[key] = max(value, result[key])
        elif key in _LOWER and _are_numbers(value, result[key]):
            result[key] = min(value, result[key])
        else:
            raise BadRequest(f"json_schema: two different '{key}' for one value at {place} are not supported; give one")
    return result


def _all_properties(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(one)
    for name, schema in other.items():
        result[name] = schema if result.get(name, schema) == schema else {"allOf": [result[name], schema]}
    return result


def _common_types(one: Any, other: Any, place: str) -> list[Any]:
    first, second = ([types] if isinstance(types, str) else list(types) for types in (one, other))
    common = [kind for kind in first if kind in second]
    if "number" in second and "integer" in first and "integer" not in common:
        common.append("integer")
    if "number" in first and "integer" in second and "integer" not in common:
        common.append("integer")
    if not common:
        raise BadRequest(f"json_schema: nothing at {place} can be both {first} and {second}")
    return common


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
