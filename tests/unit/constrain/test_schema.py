"""JSON schemas: what the grammar writes fits the schema by a validator's judgement; what it should take, it takes."""

from __future__ import annotations

import importlib
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llamacpp_backend.constrain.expression import Node
from llamacpp_backend.constrain.schema import schema_rules
from llamacpp_backend.errors import BadRequest

from tests.unit.constrain.language import fits, sample

jsonschema: Any = importlib.import_module("jsonschema")

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "grey"]}, "maxItems": 3},
        "mail": {"type": ["string", "null"]},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
LIST = {
    "type": "object",
    "properties": {"value": {"type": "number"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["value", "next"],
}
TREE = {
    "$defs": {
        "node": {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}
    },
    "$ref": "#/$defs/node",
}

# schema, texts that fit, texts that do not
CASES: dict[str, tuple[Any, list[str], list[str]]] = {
    "json object": (
        {"type": "object"},
        ["{}", '{"a": [1, {"b": null}]}', '{\n  "a": 1\n}'],
        ["[]", "1", '"x"', "{} ", ""],
    ),
    "nothing said": ({}, ["{}", '{"a": 1}'], ["[]", "1"]),
    "any value": (True, ["{}", "[1, 2]", "1", '"x"', "null", "true"], ["", "nul", "[1,]"]),
    "an object": (
        PERSON,
        [
            '{"name": "Bo", "tags": []}',
            '{"name":"Bo","age":150,"tags":["red","grey"],"mail":null}',
            '{"name": "é😀\\n", "tags": ["green"], "mail": "x"}',
        ],
        [
            "{}",
            '{"name": "Bo"}',
            '{"name": "", "tags": []}',
            '{"name": "Bo", "age": 151, "tags": []}',
            '{"tags": [], "name": "Bo"}',
            '{"name": "Bo", "tags": ["blue"]}',
            '{"name": "Bo", "tags": ["red","red","red","red"]}',
            '{"name": "Bo", "tags": [], "x": 1}',
            '{"name": "Bo", "tags": [],}',
        ],
    ),
    "only optional": (
        {"properties": {"a": {"type": "null"}, "b": {"type": "null"}}},
        ["{}", '{"a": null}', '{"b": null}', '{"a": null,"b": null}'],
        ['{"b": null,"a": null}', "{,}", '{"a": null,}', '{,"b": null}', '{"c": null}'],
    ),
    "others too": (
        {"properties": {"ab": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
        ["{}", '{"ab": null}', '{"ab": null, "x": 1, "abc": 2}', '{"a": 1}', '{"": 1}', '{"b": 1, "a": 2}'],
        ['{"ab": 1}', '{"x": null}', '{"x": 1, "ab": null}', '{"ab": null, "ab": 1}'],
    ),
    "required of others": (
        {"properties": {"a": {"type": "null"}}, "required": ["b"], "additionalProperties": {"type": "integer"}},
        ['{"b": 1}', '{"a": null, "b": 2, "c": 3}'],
        ["{}", '{"a": null}', '{"b": null}'],
    ),
    "a list": (
        LIST,
        ['{"value": 1, "next": {"value": -2.5, "next": null}}'],
        ['{"value": 1}', '{"value": 1, "next": 2}'],
    ),
    "a tree": (TREE, ["{}", '{"children": [{}, {"children": []}]}'], ['{"children": [1]}', '{"child": []}']),
    "array": (
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
        ["[true,false]", "[ true , true , false ]"],
        ["[]", "[true]", "[true,true,true,true]", "[1,2]"],
    ),
    "tuple": (
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}]},
        ["[1, null]"],
        ["[]", "[1]", "[null, 1]", "[1, null, 2]"],
    ),
    "tuple and more": (
        {"prefixItems": [{"type": "integer"}], "items": {"type": "null"}, "minItems": 0, "maxItems": 3},
        ["[]", "[1]", "[1,null]", "[1,null,null]"],
        ["[null]", "[1,1]", "[1,null,null,null]"],
    ),
    "tuple of old": (
        {"type": "array", "items": [{"type": "integer"}], "additionalItems": True},
        ["[1]", "[1, {}]"],
        ["[]", "[{}]"],
    ),
    "empty array": ({"type": "array", "maxItems": 0}, ["[]", "[ ]"], ["[1]"]),
    "enum": (
        {"enum": ["a", "ab", 1, 1.5, None, True, [1, 2], {"k": "v"}, '"\\\n']},
        ['"a"', '"ab"', "1", "1.5", "null", "true", "[1, 2]", '{"k": "v"}', '"\\"\\\\\\n"'],
        ['"b"', "2", "false", '"'],
    ),
    "enum of a type": ({"type": "string", "enum": ["a", 1, None]}, ['"a"'], ["1", "null"]),
    "const": ({"const": {"a": [1]}}, ['{"a": [1]}'], ["{}"]),
    "all of": (
        {
            "$defs": {"base": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
            "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"b": {"type": "null"}}, "required": ["b"]}],
            "title": "both",
        },
        ['{"a": 1, "b": null}'],
        ['{"a": 1}', '{"b": null}'],
    ),
    "all of numbers": (
        {"allOf": [{"type": "number", "minimum": 1}, {"type": "integer", "minimum": 3, "maximum": 9}, {"maximum": 5}]},
        ["3", "5"],
        ["2", "6", "3.5"],
    ),
    "any of with what all have": (
        {
            "type": "object",
            "properties": {"kind": {"type": "string"}},
            "required": ["kind"],
            "anyOf": [
                {"properties": {"x": {"type": "null"}}, "required": ["x"]},
                {"properties": {"y": {"type": "null"}}, "required": ["y"]},
            ],
        },
        ['{"kind": "a", "x": null}', '{"kind": "a", "y": null}'],
        ['{"kind": "a"}', '{"kind": "a", "z": null}'],
    ),
    "length": (
        {"type": "string", "minLength": 2, "maxLength": 3},
        ['"ab"', '"é\\n😀"', '"\\ud83d\\ude00a"'],
        ['"a"', '"abcd"'],
    ),
    "no length": ({"type": "string", "maxLength": 0}, ['""'], ['"a"']),
    "pattern": ({"type": "string", "pattern": "^[A-Z]{2}-\\d+$"}, ['"AB-1"'], ['"A-1"', '"AB-"', '"ab-1"']),
    "date": ({"type": "string", "format": "date"}, ['"2024-02-31"'], ['"2024-13-01"', '"24-01-01"', '"x"']),
    "date-time": (
        {"format": "date-time"},
        ['"2024-02-28T23:59:59Z"', '"2024-02-28T00:00:00.123+01:00"'],
        ['"2024-02-28"', '"2024-02-28T24:00:00Z"'],
    ),
    "uuid": ({"type": "string", "format": "uuid"}, ['"01234567-89ab-CDEF-0123-456789abcdef"'], ['"0123"']),
    "format that says nothing": ({"type": "string", "format": "email"}, ['"x"'], ["1"]),
    "integers": ({"type": "integer", "exclusiveMinimum": -1, "exclusiveMaximum": 2.5}, ["0", "2"], ["-1", "3", "1.0"]),
    "share": ({"type": "number", "minimum": 0, "maximum": 1}, ["0", "0.25", "1", "1.0"], ["-0.1", "1.01", "2", "1e0"]),
    "positive": ({"type": "number", "exclusiveMinimum": 0}, ["0.001", "1", "12.5"], ["0", "0.0", "-1"]),
    "beyond any float": ({"type": "integer", "maximum": 10**400}, ["0", "-5", "123456"], ["1.5"]),
    "64 bits": ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, ["0", "-5", "123456"], ["1.5"]),
    "types": ({"type": ["integer", "number", "boolean", "null"]}, ["1", "1.5", "true", "null"], ['"x"', "{}"]),
    "one of": ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, ['"x"', "1"], ["1.5", "null"]),
    "reference to a reference": (
        {"$defs": {"a": {"$ref": "#/$defs/b~1c%25"}, "b/c%": {"type": "null"}}, "$ref": "#/$defs/a"},
        ["null"],
        ["1"],
    ),
    "keys that JSON escapes": (
        {"properties": {'a"\\\n': {"type": "null"}}, "required": ['a"\\\n']},
        ['{"a\\"\\\\\\n": null}'],
        ["{}"],
    ),
    "a name that is required and described nowhere": ({"type": "object", "required": ["a"]}, ['{"a": [1]}'], ["{}"]),
}


def rules_of(schema: Any) -> dict[str, Node]:
    return schema_rules(json.dumps(schema))


@pytest.mark.parametrize("name", CASES)
def test_what_fits_and_what_does_not(name: str) -> None:
    schema, good, bad = CASES[name]
    rules = rules_of(schema)
    assert [text for text in good if not fits(rules, text)] == []
    assert [text for text in bad if fits(rules, text)] == []


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_is_json_that_fits(name: str) -> None:
    schema = CASES[name][0]
    rules = rules_of(schema)
    validator = jsonschema.Draft7Validator if name == "tuple of old" else jsonschema.Draft202012Validator
    chance = random.Random(5)
    for _ in range(60):
        text = sample(rules, chance)
        assert fits(rules, text)
        validator(schema).validate(json.loads(text))


NAMES = st.sampled_from(["a", "ab", "b", "é", "x y"])
SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(
        [
            {"type": "string"},
            {"type": "integer", "minimum": -3, "maximum": 12},
            {"type": "number", "minimum": 0},
            {"type": "boolean"},
            {"enum": ["a", "b", 3]},
            {"const": None},
            {"type": "string", "maxLength": 2},
        ]
    ),
    lambda inner: (
        st.builds(
            lambda properties, required, more: {
                "type": "object",
                "properties": properties,
                "required": sorted(required & set(properties)),
                "additionalProperties": more,
            },
            st.dictionaries(NAMES, inner, max_size=3),
            st.sets(NAMES),
            st.just(False) | inner,
        )
        | st.builds(
            lambda items, least, more: {"type": "array", "items": items, "minItems": least, "maxItems": least + more},
            inner,
            st.integers(0, 2),
            st.integers(0, 2),
        )
        | st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"anyOf": branches})
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(SCHEMAS, st.integers(0, 1000))
def test_any_schema_made_of_these(schema: Any, seed: int) -> None:
    rules = rules_of(schema)
    for text in (sample(rules, random.Random(seed)), sample(rules, random.Random(seed + 1))):
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (False, "json_schema: the schema at # is False; nothing fits it"),
        (7, "json_schema: the schema at # is 7; allowed are an object and true"),
        (
            {"type": "any"},
            "json_schema: type at # is 'any'; allowed are object, array, string, number, integer, boolean",
        ),
        ({"type": []}, "json_schema: type at # is []; allowed are"),
        ({"type": [1]}, "json_schema: type at # is [1]; allowed are"),
        ({"not": {}}, "json_schema: 'not' at # is not supported; supported are $ref, additionalItems"),
        *(
            (
                {"type": "object", "properties": {"a": {key: 1}}},
                f"json_schema: '{key}' at #/properties/a is not supported",
            )
            for key in (
                "if",
                "contains",
                "patternProperties",
                "minProperties",
                "uniqueItems",
                "propertyNames",
                "nullable",
            )
        ),
        (
            {"$ref": "https://example.org/x"},
            "json_schema: $ref at # is 'https://example.org/x'; allowed are references into",
        ),
        ({"$ref": "other.json#/a"}, "json_schema: $ref at # is 'other.json#/a'; allowed are references into"),
        ({"$ref": 1}, "json_schema: $ref at # is 1; allowed are references into"),
        ({"$ref": "#/$defs/x"}, "json_schema: $ref '#/$defs/x' at # points to nothing"),
        ({"$ref": "#"}, "json_schema: $ref '#' at # leads back to itself"),
        (
            {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
            "json_schema: $ref '#/$defs/a' at # leads back to",
        ),
        ({"allOf": [{"$ref": "#"}]}, "json_schema: $ref '#' at # is a part of itself"),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "json_schema: its grammar, rule 'root': begins with itself"),
        (
            {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
            "json_schema: its grammar: no text fits rule 'root' and comes to an end",
        ),
        ({"anyOf": []}, "json_schema: anyOf at # is []; allowed is a list that is not empty"),
        ({"anyOf": [False]}, "json_schema: nothing fits anyOf at #"),
        ({"enum": []}, "json_schema: enum at # is []; allowed is a list that is not empty"),
        ({"enum": [1], "type": "string"}, "json_schema: no value of enum or const at # has the type string"),
        ({"enum": ["a"], "minLength": 3}, "json_schema: 'minLength' beside enum or const at # is not supported"),
        (
            {"allOf": [{"type": "string"}, {"type": "null"}]},
            "json_schema: nothing at # can be both ['string'] and ['null']",
        ),
        (
            {"allOf": [{"pattern": "^a$"}, {"pattern": "^b$"}]},
            "json_schema: two different 'pattern' for one value at # are not supported; give one",
        ),
        ({"allOf": [7]}, "json_schema: a part of allOf at # is 7; allowed is an object"),
        ({"minimum": 1, "minLength": 1}, "json_schema: the keywords at # belong to several types; give 'type'"),
        ({"type": "object", "properties": []}, "json_schema: properties at # is []; allowed is an object"),
        ({"type": "object", "required": "a"}, "json_schema: required at # is 'a'; allowed is a list of names"),
        ({"properties": {"a": False}, "required": ["a"]}, "json_schema: property 'a' at # is required and not allowed"),
        (
            {"required": ["a"], "additionalProperties": False},
            "json_schema: property 'a' at # is required and not allowed",
        ),
        (
            {"type": "array", "maxItems": 1001},
            "json_schema: maxItems at # is 1001; allowed is an integer from 0 to 1000",
        ),
        (
            {"type": "array", "maxItems": 10**9},
            "json_schema: maxItems at # is 1000000000; allowed is an integer from 0",
        ),
        ({"type": "array", "minItems": -1}, "json_schema: minItems at # is -1; allowed is an integer from 0 to 1000"),
        ({"type": "array", "minItems": True}, "json_schema: minItems at # is True; allowed is an integer"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "json_schema: an array at # has 3 to 2 items; nothing fits"),
        ({"prefixItems": [True], "minItems": 2}, "json_schema: an array at # has 2 items, of which 1 are allowed"),
        (
            {"type": "string", "maxLength": 1.5},
            "json_schema: maxLength at # is 1.5; allowed is an integer from 0 to 1000",
        ),
        (
            {"type": "string", "maxLength": 5000},
            "json_schema: maxLength at # is 5000; allowed is an integer from 0 to 1000",
        ),
        (
            {"type": "string", "minLength": 3, "maxLength": 2},
            "json_schema: a string at # has 3 to 2 characters; nothing",
        ),
        ({"pattern": "^a$", "maxLength": 2}, "json_schema: pattern and a length at # are not supported together"),
        (
            {"pattern": "a"},
            "json_schema: pattern 'a' at # is not anchored; allowed are patterns that begin with ^ and end",
        ),
        ({"pattern": 1}, "json_schema: pattern at # is 1; allowed is a string"),
        ({"type": "integer", "minimum": "1"}, "json_schema: minimum at # is '1'; allowed is a number"),
        (
            {"type": "integer", "exclusiveMinimum": True},
            "json_schema: exclusiveMinimum at # is True; allowed is a number",
        ),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "json_schema: no integer at # lies within its bounds"),
        ({"type": "integer", "minimum": 1.2, "maximum": 1.8}, "json_schema: no integer at # lies within its bounds"),
        ({"type": "integer", "minimum": 10**17}, "json_schema: no integer at # lies within its bounds"),
        (
            {"type": "integer", "multipleOf": 2},
            "json_schema: multipleOf at # is not supported, but for 1 of an integer",
        ),
        (
            {"type": "number", "minimum": 0.5},
            "json_schema: the bound 0.5 of a number at # is not supported; allowed are whole",
        ),
        ({"type": "number", "exclusiveMinimum": 1, "maximum": 1}, "json_schema: no number at # lies within its bounds"),
        (
            {"properties": {f"p{number}": {} for number in range(65)}},
            "json_schema: an object with 65 optional properties is not supported; allowed are 64",
        ),
        (
            {"properties": {"x" * 501: {}}, "additionalProperties": True},
            "json_schema: additionalProperties beside properties whose names have 501 characters are not supported",
        ),
    ],
)
def test_refused_by_name_and_place(schema: Any, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        rules_of(schema)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "json_schema is not JSON"),
        ('{"enum": [1e400]}', "json_schema: a number of enum or const at # is too large"),
        ("{", "json_schema is not JSON"),
        ("[" * 30_000, "json_schema is not JSON"),
        ('{"const": NaN}', "json_schema is not JSON: NaN is no JSON value"),
        ('{"const": ' + "9" * 5000 + "}", "json_schema is not JSON"),
        ('{"const": "\\ud800"}', "json_schema holds half of a surrogate pair"),
        ('{"type": "integer", "minimum": 1e400}', "json_schema: minimum at # is inf; allowed is a number"),
        (" " * 65_537, "json_schema has 65537 bytes; allowed are at most 65536"),
    ],
)
def test_text_that_is_no_schema(text: str, words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        schema_rules(text)
    assert str(caught.value).startswith(words)


def test_depth() -> None:
    def nested(levels: int) -> Any:
        schema: Any = {"type": "null"}
        for _ in range(levels):
            schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": 1}
        return schema

    assert fits(rules_of(nested(32)), "[" * 32 + "null" + "]" * 32)
    with pytest.raises(BadRequest, match="json_schema is nested more than 32 deep at #/items/items"):
        rules_of(nested(33))


def test_references_that_multiply() -> None:
    def chained(keyword: str, last: Any) -> Any:
        references = [{"$ref": "#/$defs/t1"}, {"$ref": "#/$defs/t1"}]
        defs = {f"t{i}": {keyword: [{"$ref": f"#/$defs/t{i + 1}"}] * 2} for i in range(1, 40)}
        return {keyword: references, "$defs": {**defs, "t40": last}}

    with pytest.raises(BadRequest, match="json_schema takes more than 10000 steps to read"):
        rules_of(chained("allOf", {"type": "null"}))
    assert fits(rules_of(chained("anyOf", {"type": "null"})), "null")


def test_many_required_properties_and_values() -> None:
    names = [f"property{number}" for number in range(500)]
    rules = rules_of({"properties": {name: {"type": "null"} for name in names}, "required": names})
    assert fits(rules, json.dumps(dict.fromkeys(names)))
    words = [f"word{number}" for number in range(2000)]
    rules = rules_of({"enum": words})
    assert fits(rules, '"word1999"')
    assert not fits(rules, '"word2000"')
