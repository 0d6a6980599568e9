"""The desired set: what is read, and that each thing wrong with it is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tritonctl import desired
from tritonctl.errors import BadInput
from tritonctl.names import check_model_name, check_unit_name


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "name": "demo",
        "version": 1,
        "state": "loaded",
        "revision": "0123456789ab",
        "units": ["demo_stream", "demo"],
        **changes,
    }


def parse(*entries: Any, **top: Any) -> list[desired.Model]:
    return desired.parse(json.dumps({"schema": 1, "models": list(entries), **top}).encode())


def test_whole() -> None:
    golden = [{"prompt": "你好", "equals": ""}, {"prompt": "x", "contains": "y", "max_tokens": 3}]
    (model,) = parse(entry(golden=golden))
    assert model.units == ("demo_stream", "demo")
    assert model.golden[0] == desired.Golden("你好", "", None, None)
    assert model.golden[1] == desired.Golden("x", None, "y", 3)


def test_no_models() -> None:
    assert parse() == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "../x"}, "'../x' is not a model name"),
        ({"name": "x;id"}, "'x;id' is not a model name"),
        ({"name": "x\n"}, "is not a model name"),
        ({"name": "x" * 65}, "is not a model name"),
        ({"name": "demo_stream"}, "'demo_stream' names an engine"),
        ({"name": 5}, "name is 5, it must be a string"),
        ({"version": 0}, "version is 0, it must be an integer of at least 1"),
        ({"version": True}, "version is True"),
        ({"version": "1"}, "version is '1'"),
        ({"state": "absent"}, "state is 'absent', allowed: loaded, present"),
        ({"revision": "0123456789AB"}, "revision is '0123456789AB'"),
        ({"revision": "0123456789ab\n"}, "revision is"),
        ({"units": []}, "must hold the model's own name 'demo'"),
        ({"units": ["demo", "a/b"]}, "'a/b' is not a name of a Triton model"),
        ({"units": ["demo", "demo"]}, "'demo' is in 'demo'"),
        ({"units": "demo"}, "units is 'demo', it must be a list"),
        ({"colour": 1, "shape": 2}, "models[0] has unknown keys: colour, shape (allowed: name"),
        ({"golden": [{"prompt": "x"}]}, "golden[0] must have exactly one of equals, contains; it has 0"),
        ({"golden": [{"prompt": "x", "equals": "a", "contains": "b"}]}, "it has 2"),
        ({"golden": [{"prompt": "x", "contains": ""}]}, "must not be empty"),
        ({"golden": [{"prompt": "x", "equals": "a", "seed": 1}]}, "golden[0] has unknown keys: seed"),
        ({"golden": [{"prompt": "x", "equals": "a", "max_tokens": 0}]}, "golden[0].max_tokens is 0"),
    ],
)
def test_a_wrong_entry_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(entry(**changes))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not a JSON document"),
        (b"\xff", "not a JSON document"),
        (b"[" * 100000, "not a JSON document"),
        (b"[]", "the document is [], it must be an object"),
        (b"{}", "the document lacks: schema, models"),
        (b'{"schema": 2, "models": []}', "schema is 2, this tritonctl reads 1"),
        (b'{"schema": true, "models": []}', "schema is True"),
        (b'{"schema": 1, "models": {}}', "models is {}, it must be a list"),
        (b'{"schema": 1, "models": [], "x": 1}', "unknown keys: x"),
        (b'{"schema": 1, "models": [], "models": []}', "'models' comes twice"),
        (b'{"schema": 1, "models": [{"name": "demo"}]}', "models[0] lacks: version, state, revision, units"),
    ],
)
def test_a_wrong_document_is_named(raw: bytes, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        desired.parse(raw)
    assert words in str(caught.value)


def test_one_unit_in_two_models() -> None:
    with pytest.raises(BadInput, match="unit 'demo_stream' is in 'demo' and in 'b'"):
        parse(entry(), entry(name="b", units=["demo_stream", "b"]))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no desired set at .*models\.json"):
        desired.read(str(tmp_path / "models.json"))


def test_names_at_their_limits() -> None:
    assert check_model_name("_a.B-9") == "_a.B-9"
    assert check_model_name("x" * 64)
    assert check_unit_name("x" * 64 + "_stream")
    for name in ("", ".a", "-a", "a b", "a/b", "ü", "x" * 72):
        with pytest.raises(BadInput):
            check_unit_name(name)
