"""JSON schema -> grammar of the JSON texts that fit it.

Where a schema leaves things open, the grammar is narrower than the standard, as one wants it of a generator:
properties come in the order of the schema, and only those it names unless it says `additionalProperties`; a list of
`prefixItems` is complete and has no more unless the schema says so; without `type` it follows from the keywords.
What would have to be ignored is refused by name. `oneOf` is taken as `anyOf`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Sequence as List
from typing import Any, NoReturn
from urllib.parse import unquote

from ..errors import BadRequest
from ..parameters import MAX_CONSTRAINT_BYTES
from ..rules import byte_size, shown
from .arrays import array_node
from .checks import check, reachable, references
from .expression import NOTHING, Literal, Node, Reference, choice
from .factoring import factored
from .json_text import ARRAY, BOOLEAN, NULL, OBJECT, RULES, VALUE
from .keywords import OF_TYPE, TYPES, both, check_keywords, said
from .objects import Property, object_node
from .scalars import count, number_node, string_node
from .width import check_width

MAX_DEPTH = 32
MAX_STEPS = 10_000


def schema_rules(text: str) -> dict[str, Node]:
    """The grammar for a JSON schema given as JSON text. Raises BadRequest that names the keyword and its place."""
    size = byte_size("json_schema", text)
    if size > MAX_CONSTRAINT_BYTES:
        raise BadRequest(f"json_schema has {size} bytes; allowed are at most {MAX_CONSTRAINT_BYTES}")
    try:
        schema = json.loads(text, parse_constant=_no_constant)
        byte_size("json_schema", json.dumps(schema, ensure_ascii=False))
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"json_schema is not JSON: {error}") from error
    try:
        rules = _Converter(schema).rules()
        check(rules)  # the next steps rely on it
        rules = reachable(factored(rules))
        check(rules)
    except BadRequest as error:
        raise BadRequest(str(error).replace("grammar", "json_schema: its grammar", 1)) from error
    check_width(rules)
    return rules


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON value")


class _Converter:
    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._rules: dict[str, Node] = {}
        self._names: dict[str, str] = {}  # reference -> its rule
        self._todo: list[tuple[str, Any, str]] = []  # rules that are named but not made yet
        self._steps = 0

    def rules(self) -> dict[str, Node]:
        """All rules that are needed, the one named root first."""
        # An empty schema is how clients ask for "a JSON object".
        self._rules["root"] = NOTHING  # comes first
        self._rules["root"] = OBJECT if self._schema == {} else self._value(self._schema, "#", 0)
        while self._todo:
            name, schema, place = self._todo.pop()
            self._rules[name] = self._value(schema, place, 0)
        return self._with_json(self._rules)

    def _with_json(self, rules: dict[str, Node]) -> dict[str, Node]:
        """The rules and those of JSON itself that they use."""
        found = dict(rules)
        todo = list(rules.values())
        while todo:
            for name in references(todo.pop()):
                if name not in found:
                    found[name] = RULES[name]
                    todo.append(RULES[name])
        return found

    def _add_rule(self, node: Node) -> Node:
        if isinstance(node, Reference):
            return node
        name = f"r{len(self._rules)}"
        self._rules[name] = node
        return Reference(name)

    def _value(self, schema: Any, place: str, depth: int) -> Node:
        """What fits a schema. Raises BadRequest."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise BadRequest(f"json_schema takes more than {MAX_STEPS} steps to read; make it smaller")
        if depth > MAX_DEPTH:
            raise BadRequest(f"json_schema is nested more than {MAX_DEPTH} deep at {place}; allowed are {MAX_DEPTH}")
        if schema is True:
            return VALUE
        if not isinstance(schema, dict):
            what = "nothing fits it" if schema is False else "allowed are an object and true"
            raise BadRequest(f"json_schema: the schema at {place} is {shown(schema)}; {what}")
        check_keywords(schema, place)
        words = said(schema)
        if not words:
            return VALUE
        if set(words) == {"$ref"}:
            return self._reference(words["$ref"], place)
        if "$ref" in words or "allOf" in words:
            return self._value(self._flat(words, place, ()), place, depth + 1)
        for keyword in ("anyOf", "oneOf"):
            if keyword in words:
                return self._any_of(words, keyword, place, depth)
        if "enum" in words or "const" in words:
            return self._constants(words, place)
        return self._typed(words, place, depth)

    def _reference(self, reference: Any, place: str) -> Node:
        """The rule of a $ref; made later, so that a schema may refer to itself."""
        seen = [reference]
        target = self._target(reference, place)
        while isinstance(target, dict) and set(said(target)) == {"$ref"}:
            reference = target["$ref"]
            if reference in seen:
                raise BadRequest(f"json_schema: $ref {shown(reference)} at {place} leads back to itself")
            seen.append(reference)
            target = self._target(reference, place)
        if reference not in self._names:
            name = "root" if reference == "#" else f"d{len(self._names)}"
            self._names[reference] = name
            if name != "root":
                self._rules[name] = NOTHING  # takes the name; see rules()
                self._todo.append((name, target, reference))
        return Reference(self._names[reference])

    def _target(self, reference: Any, place: str) -> Any:
        """What a $ref points to within this schema."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise BadRequest(
                f"json_schema: $ref at {place} is {shown(reference)}; allowed are references into this schema, '#/...'"
            )
        target = self._schema
        for part in reference.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and key in target:
                target = target[key]
            elif isinstance(target, list) and key.isascii() and key.isdigit() and int(key[:6]) < len(target):
                target = target[int(key[:6])]
            else:
                raise BadRequest(f"json_schema: $ref {shown(reference)} at {place} points to nothing")
        return target

    def _flat(self, words: Mapping[str, Any], place: str, seen: tuple[Any, ...]) -> dict[str, Any]:
        """One schema for a schema with $ref or allOf and what stands beside."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise BadRequest(f"json_schema takes more than {MAX_STEPS} steps to read; make it smaller")
        result = {key: value for key, value in words.items() if key not in ("$ref", "allOf")}
        parts: list[tuple[Any, tuple[Any, ...]]] = []
        if "$ref" in words:
            if words["$ref"] in seen:
                raise BadRequest(f"json_schema: $ref {shown(words['$ref'])} at {place} is a part of itself")
            parts.append((self._target(words["$ref"], place), (*seen, words["$ref"])))
        if "allOf" in words:
            parts += [(part, seen) for part in self._list(words, "allOf", place)]
        for part, path in parts:
            if part is True:
                continue
            if not isinstance(part, dict):
                raise BadRequest(f"json_schema: a part of allOf at {place} is {shown(part)}; allowed is an object")
            check_keywords(part, place)
            result = both(result, self._flat(said(part), place, path), place)
        return result

    def _any_of(self, words: Mapping[str, Any], keyword: str, place: str, depth: int) -> Node:
        branches: list[Node] = []
        rest = {key: value for key, value in words.items() if key != keyword}
        for index, branch in enumerate(self._list(words, keyword, place)):
            here = f"{place}/{keyword}/{index}"
            if branch is False:
                continue
            if rest:
                branch = {"allOf": [rest, branch]}
            branches.append(self._value(branch, here, depth + 1))
        if not branches:
            raise BadRequest(f"json_schema: nothing fits {keyword} at {place}")
        return choice(branches)

    def _constants(self, words: Mapping[str, Any], place: str) -> Node:
        values = [words["const"]] if "const" in words else self._list(words, "enum", place)
        beside = sorted(
            set(words) - {"const", "enum", "type"} if "const" not in words else set(words) - {"const", "type"}
        )
        if beside:
            raise BadRequest(f"json_schema: '{beside[0]}' beside enum or const at {place} is not supported")
        types = self._types(words["type"], place) if "type" in words else TYPES
        try:
            texts = [json.dumps(v, ensure_ascii=False, allow_nan=False) for v in values if _has_type(v, types)]
        except ValueError as error:  # 1e400 is read as infinity
            raise BadRequest(f"json_schema: a number of enum or const at {place} is too large") from error
        if not texts:
            raise BadRequest(f"json_schema: no value of enum or const at {place} has the type {words['type']}")
        return choice(map(Literal, texts))

    def _typed(self, words: Mapping[str, Any], place: str, depth: int) -> Node:
        types = self._types(words["type"], place) if "type" in words else self._implied(words, place)
        nodes: list[Node] = []
        for kind in types:
            if kind == "integer" and "number" in types:
                continue  # every integer is a number
            of_kind = {key: value for key, value in words.items() if key in OF_TYPE[kind]}
            nodes.append(self._of_type(kind, of_kind, place, depth))
        return choice(nodes)

    def _of_type(self, kind: str, words: Mapping[str, Any], place: str, depth: int) -> Node:
        match kind:
            case "object":
                return self._object(words, place, depth)
            case "array":
                return self._array(words, place, depth)
            case "string":
                return self._add_rule(string_node(words, place))
            case "number" | "integer":
                return self._add_rule(number_node({**words, "type": kind}, place))
            case "boolean":
                return BOOLEAN
            case _:
                return NULL

    def _implied(self, words: Mapping[str, Any], place: str) -> List[str]:
        """The type that keywords belong to, when the schema gives none."""
        kinds = [kind for kind in ("object", "array", "string", "number") if set(words) <= OF_TYPE[kind]]
        if not kinds:
            raise BadRequest(f"json_schema: the keywords at {place} belong to several types; give 'type'")
        return kinds

    def _types(self, value: Any, place: str) -> List[str]:
        types = [value] if isinstance(value, str) else value
        if (
            not isinstance(types, list)
            or not types
            or not all(isinstance(kind, str) and kind in TYPES for kind in types)
        ):
            raise BadRequest(f"json_schema: type at {place} is {shown(value)}; allowed are {', '.join(TYPES)}")
        return list(dict.fromkeys(types))

    def _object(self, words: Mapping[str, Any], place: str, depth: int) -> Node:
        schemas = words.get("properties", {})
        required = words.get("required", [])
        if not isinstance(schemas, dict):
            raise BadRequest(f"json_schema: properties at {place} is {shown(schemas)}; allowed is an object")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise BadRequest(f"json_schema: required at {place} is {shown(required)}; allowed is a list of names")
        more = words.get("additionalProperties", not schemas)
        properties = []
        for name in (*schemas, *(name for name in dict.fromkeys(required) if name not in schemas)):
            schema = schemas.get(name, more)
            if schema is False:
                if name in required:
                    raise BadRequest(f"json_schema: property {shown(name)} at {place} is required and not allowed")
                continue
            value = self._value(schema, f"{place}/properties/{name[:40]}", depth + 1)
            properties.append(Property(name, value, name in required))
        if not properties and more is True:
            return OBJECT
        others = None if more is False else self._value(more, f"{place}/additionalProperties", depth + 1)
        return self._add_rule(object_node(properties, others, self._add_rule))

    def _array(self, words: Mapping[str, Any], place: str, depth: int) -> Node:
        items, first = words.get("items", True), words.get("prefixItems", [])
        if isinstance(items, list):  # as it was written up to draft 2019-09
            items, first = words.get("additionalItems", False), items
        elif first:
            items = words.get("items", False)
        if not isinstance(first, list):
            raise BadRequest(f"json_schema: prefixItems at {place} is {shown(first)}; allowed is a list")
        least = count(words, "minItems", len(first), place)
        most = count(words, "maxItems", None if items is not False else max(least or 0, len(first)), place)
        if not words.keys() & {"items", "prefixItems", "minItems", "maxItems"}:
            return ARRAY
        if most is not None and most < least:
            raise BadRequest(f"json_schema: an array at {place} has {least} to {most} items; nothing fits")
        heads = [self._value(item, f"{place}/prefixItems/{at}", depth + 1) for at, item in enumerate(first[:most])]
        if least > len(heads) and items is False:
            raise BadRequest(f"json_schema: an array at {place} has {least} items, of which {len(heads)} are allowed")
        item = NOTHING if items is False else self._add_rule(self._value(items, f"{place}/items", depth + 1))
        return self._add_rule(array_node(heads, None if items is False else item, least, most))

    def _list(self, words: Mapping[str, Any], key: str, place: str) -> list[Any]:
        value = words[key]
        if not isinstance(value, list) or not value:
            raise BadRequest(f"json_schema: {key} at {place} is {shown(value)}; allowed is a list that is not empty")
        return value


def _has_type(value: Any, types: List[str]) -> bool:
    if isinstance(value, bool):
        return "boolean" in types
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer" in types or "number" in types
    kinds = {str: "string", float: "number", list: "array", dict: "object", type(None): "null"}
    return kinds[type(value)] in types
