"""model.json: what is read, and that everything else is refused with file, key, value and what is allowed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from llamacpp_backend.errors import LoadError
from llamacpp_backend.settings import (
    SETTINGS,
    EngineSettings,
    check_defaults,
    read_engine_settings,
    read_front_settings,
)

GOOD: dict[str, Any] = {
    "schema": 1,
    "name": "demo",
    "version": 3,
    "revision": "0123456789ab",
    "engine": {"n_ctx": 2048, "n_batch": 512, "n_threads": 2, "queue_size": 8},
    "defaults": {"max_tokens": 64, "temperature": 0.0, "stop": ["###"]},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.json"


def write(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps({**GOOD, **changes}), encoding="utf-8")
    return path


def refusal(path: Path, **changes: Any) -> str:
    with pytest.raises(LoadError) as caught:
        read_engine_settings(write(path, **changes))
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def test_good(path: Path) -> None:
    settings = read_engine_settings(write(path))
    assert (settings.name, settings.version, settings.revision) == ("demo", 3, "0123456789ab")
    assert settings.engine == EngineSettings(n_ctx=2048, n_batch=512, n_threads=2, queue_size=8)
    assert settings.defaults == GOOD["defaults"]


def test_engine_and_defaults_may_be_absent(path: Path) -> None:
    data = {key: value for key, value in GOOD.items() if key not in ("engine", "defaults")}
    path.write_text(json.dumps(data), encoding="utf-8")
    settings = read_engine_settings(path)
    assert settings.engine == EngineSettings()
    assert settings.defaults == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"extra": 1}, "unknown key 'extra'; allowed are schema, name, version, revision, engine, defaults"),
        (
            {"engine": {"threads": 1}},
            f"unknown key 'engine.threads'; allowed are {', '.join(setting.name for setting in SETTINGS)}",
        ),
        ({"schema": 2}, "schema is 2; this backend reads schema 1"),
        ({"schema": None}, "schema is None; this backend reads schema 1"),
        ({"name": ""}, "name is ''; allowed is a string that is not empty"),
        ({"name": 1}, "name is 1; allowed is a string that is not empty"),
        ({"version": 0}, "version is 0; allowed is an integer of 1 or more"),
        ({"version": True}, "version is True; allowed is an integer of 1 or more"),
        ({"version": "1"}, "version is '1'; allowed is an integer of 1 or more"),
        ({"revision": "0123456789AB"}, "revision is '0123456789AB'; allowed are 12 hexadecimal digits"),
        ({"revision": "0123456789ab\n"}, "revision is '0123456789ab\\n'; allowed are 12 hexadecimal digits"),
        ({"engine": []}, "engine is []; allowed is a JSON object"),
        ({"defaults": "x"}, "defaults is 'x'; allowed is a JSON object"),
    ],
)
def test_refused(path: Path, changes: dict[str, Any], message: str) -> None:
    assert refusal(path, **changes) == message


def test_unknown_default_is_named(path: Path) -> None:
    assert refusal(path, defaults={"best_of": 1}).startswith("unknown key 'defaults.best_of'; allowed are max_tokens")


def test_wrong_default_is_named(path: Path) -> None:
    assert refusal(path, defaults={"temperature": 11}) == (
        "defaults: temperature is 11; allowed is a number from 0 to 10"
    )


# name: lowest, highest, unit, whether 0 stands for a computed value
RANGES = {
    "n_ctx": (16, 1_048_576, " tokens", True),
    "n_parallel": (1, 64, "", True),
    "n_batch": (16, 8192, " tokens", True),
    "n_ubatch": (16, 8192, " tokens", True),
    "n_threads": (1, 512, "", True),
    "max_added_latency_ms": (1, 60_000, " ms", True),
    "queue_size": (1, 512, "", True),
    "prompt_cache_mib": (0, 1_048_576, " MiB", False),
    "checkpoint_every": (0, 1_048_576, " tokens", False),
    "timeout_ms": (0, 86_400_000, " ms", False),
}
FLAGS = ("kv_unified", "allow_grammar")
CACHE_TYPES = ["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
CHOICES = {"cache_type_k": CACHE_TYPES, "cache_type_v": CACHE_TYPES, "flash_attention": ["auto", "on", "off"]}


def read(path: Path, key: str, value: Any) -> Any:
    return getattr(read_engine_settings(write(path, engine={key: value}, defaults={})).engine, key)


def test_every_setting_is_a_field_and_is_tested_here() -> None:
    names = [setting.name for setting in SETTINGS]
    assert names == [field.name for field in dataclasses.fields(EngineSettings)]
    assert {*RANGES, *FLAGS, *CHOICES} == set(names)


@pytest.mark.parametrize("key", RANGES)
def test_engine_numbers_at_their_limits(path: Path, key: str) -> None:
    low, high, _, _ = RANGES[key]
    for value in (0, low, high):
        assert read(path, key, value) == value


@pytest.mark.parametrize("key", RANGES)
def test_engine_numbers_beyond_their_limits_or_of_another_type(path: Path, key: str) -> None:
    low, high, unit, computed = RANGES[key]
    zero = "0 (computed) or " if computed else ""
    for value in (low - 1 or -1, high + 1, -1, 1.0, 0.0, True, False, "16", None, [16]):
        assert refusal(path, engine={key: value}) == (
            f"engine.{key} is {value!r}; allowed is {zero}an integer from {low} to {high}{unit}"
        )


@pytest.mark.parametrize("key", FLAGS)
def test_engine_flags(path: Path, key: str) -> None:
    assert [read(path, key, value) for value in (True, False)] == [True, False]
    wrong: list[Any] = [0, 1, "true", None, []]
    for value in wrong:
        assert refusal(path, engine={key: value}) == f"engine.{key} is {value!r}; allowed is true or false"


@pytest.mark.parametrize("key", CHOICES)
def test_engine_choices(path: Path, key: str) -> None:
    assert [read(path, key, value) for value in CHOICES[key]] == CHOICES[key]
    for value in ("F16", "", "q2_k", 1, None, ["f16"]):
        assert refusal(path, engine={key: value}) == (
            f"engine.{key} is {value!r}; allowed is one of {', '.join(CHOICES[key])}"
        )


def test_yaml_reads_on_and_off_as_booleans(path: Path) -> None:
    assert [read(path, "flash_attention", value) for value in (True, False)] == ["on", "off"]
    assert refusal(path, engine={"cache_type_k": True}).startswith("engine.cache_type_k is True")


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"n_batch": 64, "n_ubatch": 65}, "engine.n_ubatch is 65; allowed is at most 64 (n_batch)"),
        ({"n_batch": 16, "n_parallel": 17}, "engine.n_batch is 16; allowed is 17 (n_parallel) or more"),
        (
            {"cache_type_v": "q8_0", "flash_attention": False},
            "engine.cache_type_v is 'q8_0' while engine.flash_attention is off; allowed without",
        ),
    ],
)
def test_settings_that_do_not_go_together(path: Path, engine: dict[str, Any], message: str) -> None:
    assert refusal(path, engine=engine).startswith(message)


@pytest.mark.parametrize(
    "engine",
    [
        {"n_batch": 64, "n_ubatch": 64, "n_parallel": 64},
        {"n_ubatch": 8192, "n_parallel": 64},
        {"cache_type_v": "q8_0"},
        {"cache_type_k": "q8_0", "flash_attention": "off"},
    ],
)
def test_settings_that_go_together(path: Path, engine: dict[str, Any]) -> None:
    settings = read_engine_settings(write(path, engine=engine, defaults={})).engine
    assert {key: getattr(settings, key) for key in engine} == engine


def test_defaults_must_fit_a_set_context(path: Path) -> None:
    message = refusal(path, engine={"n_ctx": 64}, defaults={"max_tokens": 65})
    assert message == "defaults: max_tokens is 65; allowed is an integer from 1 to 64 (n_ctx)"


@pytest.mark.parametrize(
    ("engine", "defaults", "message"),
    [
        ({"n_parallel": 2}, {"n": 3}, "defaults: n is 3; allowed is an integer from 1 to 2 (n_parallel)"),
        ({"timeout_ms": 9}, {"timeout_ms": 10}, "defaults: timeout_ms is 10; allowed is an integer from 0 to 9"),
        ({}, {"grammar": 'root ::= "x"'}, "defaults.grammar is set while engine.allow_grammar is false"),
    ],
)
def test_defaults_must_fit_the_engine(
    path: Path, engine: dict[str, Any], defaults: dict[str, Any], message: str
) -> None:
    assert refusal(path, engine=engine, defaults=defaults).startswith(message)
    read_engine_settings(write(path, engine={"allow_grammar": True}, defaults=defaults))


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ({"json_schema": '{"not": {}}'}, "defaults: json_schema: 'not' at # is not supported; supported are"),
        ({"json_schema": "{"}, "defaults: json_schema is not JSON"),
        ({"grammar": "root ::= x"}, "defaults: grammar, rule 'root': there is no rule 'x'"),
    ],
)
def test_constraints_among_the_defaults_are_read(path: Path, defaults: dict[str, Any], message: str) -> None:
    assert refusal(path, engine={"allow_grammar": True}, defaults=defaults).startswith(message)
    read_engine_settings(write(path, defaults={"json_schema": '{"type": "object"}'}))


def test_defaults_must_fit_the_vocabulary(path: Path) -> None:
    check_defaults(path, {"logit_bias": {"9": 1}}, 64, n_vocab=10)
    with pytest.raises(LoadError, match="defaults: logit_bias has token 9; allowed are token ids from 0 to 8"):
        check_defaults(path, {"logit_bias": {"9": 1}}, 64, n_vocab=9)


def test_defaults_must_fit_a_computed_context(path: Path) -> None:
    check_defaults(path, {"max_tokens": 64}, 64)
    with pytest.raises(LoadError, match="defaults: max_tokens is 65"):
        check_defaults(path, {"max_tokens": 65}, 64)


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"{", "is not JSON"), (b"[]", "holds list; allowed is a JSON object"), (b"\xff", "is not JSON")],
)
@pytest.mark.parametrize("read", [read_engine_settings, read_front_settings])
def test_files_that_hold_something_else(path: Path, read: Any, data: bytes, message: str) -> None:
    path.write_bytes(data)
    with pytest.raises(LoadError) as caught:
        read(path)
    assert f"{path}: {message}" in str(caught.value)


@pytest.mark.parametrize("read", [read_engine_settings, read_front_settings])
def test_missing_file(path: Path, read: Any) -> None:
    with pytest.raises(LoadError, match="can't be read: No such file or directory"):
        read(path)


def test_front(path: Path) -> None:
    path.write_text('{"engine_model": "demo_stream"}', encoding="utf-8")
    assert read_front_settings(path) == "demo_stream"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "engine_model is None"),
        ('{"engine_model": ""}', "engine_model is ''"),
        ('{"engine_model": 1}', "engine_model is 1"),
        ('{"engine_model": "x", "name": "y"}', "unknown key 'name'; allowed are engine_model"),
    ],
)
def test_front_refused(path: Path, text: str, message: str) -> None:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(LoadError) as caught:
        read_front_settings(path)
    assert message in str(caught.value)
