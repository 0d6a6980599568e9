"""Constraints on real llama.cpp: what ends or stops a process is refused, and what is taken is kept to."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llamacpp_backend.constrain import helper
from llamacpp_backend.constrain.constraints import Constraints
from llamacpp_backend.constrain.helper import TrialProcess
from llamacpp_backend.errors import BadRequest, Unavailable
from llamacpp_backend.parameters import parse_sampling

from tests.engine.conftest import OpenAsker

jsonschema: Any = importlib.import_module("jsonschema")

DEMO = Path(__file__).resolve().parents[2] / "files" / "demo_model" / "demo.gguf"
SECONDS = 2.0  # that a refusal may take, on a machine that has time for it
BUSY = 5.0  # how many times longer it may take on one that has not
SIMPLE = '{"type": "boolean"}'


@pytest.fixture(scope="module")
def trial(wheel_directory: Path) -> Iterator[TrialProcess]:
    """A process for trials, with the demo model's vocabulary; it has already been started."""
    process = TrialProcess(DEMO, sys.executable)
    process.run("json_schema", SIMPLE)
    yield process
    process.close()


def alike(levels: int) -> dict[str, Any]:
    """Alternatives with an optional property before what tells them apart, in each other: 2^levels ways."""
    defs: dict[str, Any] = {f"t{levels}": {"type": "string"}}
    for level in range(levels):
        inner = {"$ref": f"#/$defs/t{level + 1}"}
        defs[f"t{level}"] = {
            "anyOf": [
                {"type": "object", "additionalProperties": inner},
                {"type": "object", "properties": {"a": inner}, "additionalProperties": inner},
            ]
        }
    return {"$defs": defs, "$ref": "#/$defs/t0"}


GRAMMARS = {
    "20,000 parentheses": "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000,
    "20,000 open parentheses": "root ::= " + "(" * 20_000,
    "many ways to read six optional letters": 'root ::= x{1,40}\nx ::= "a"? "b"? "c"? "d"? "e"? "f"?',
    "many ways to read one letter": 'root ::= x{1,40}\nx ::= "a"? "a"? "a"? "a"? "a"? "a"?',
    "the same far into a text": 'root ::= "x"{500} y{1,40}\ny ::= "a"? "a"? "a"? "a"? "a"? "a"?',
    "two ways more with each letter": 'root ::= [a-z ] root "b" | [a-z ] root "c" | "x"',
    "left recursion": 'root ::= root "a" | "b"',
    "hidden left recursion": 'root ::= a root "x" | "y"\na ::= b\nb ::= ""',
    "2^40 beginnings": "root ::= r0\n"
    + "".join(f'r{i} ::= r{i + 1} "a" | r{i + 1} "b"\n' for i in range(40))
    + 'r40 ::= "c"',
    "3,500 rules in a row": "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(3500)) + 'r3500 ::= "c"',
    "a repetition from 3 to 1": 'root ::= "a"{3,1}',
    "a repetition of 10^9": 'root ::= "a"{1000000000}',
    "repetitions of repetitions": 'root ::= (("a"{1000}){1000}){1000}',
    "optional repetitions": 'root ::= (("a"?){0,1000}){0,1000}',
    "a long text often": 'root ::= "' + "a" * 60_000 + '"{1000}',
    "13,000 alternatives": "root ::= " + " | ".join(['"a"'] * 13_000),
    "an undefined rule": "root ::= foo",
    "no root": 'x ::= "a"',
    "nothing": "",
    "half of a surrogate pair": r'root ::= "\ud800"',
    "an open quote": 'root ::= "a',
    "a token by its number": 'root ::= "a" <[5]>',
    "a text without end": 'root ::= "a" root',
    "a character that no token has": r'root ::= "\x00"',
    "no GBNF at all": "\x01\x02\ufffd" * 100,
}
SCHEMAS: dict[str, Any] = {
    "10^9 items": {"type": "array", "maxItems": 10**9},
    "20,000 characters": {"type": "string", "maxLength": 20_000},
    "20,000 brackets": "[" * 20_000,
    "alternatives that double": alike(32),
    "itself as an alternative": {"anyOf": [{"$ref": "#"}, {"type": "string"}]},
    "itself as a requirement": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "a pattern of optional letters": {"type": "string", "pattern": "^(a?){1000}(a?){1000}$"},
    "a pattern of repetitions": {"type": "string", "pattern": "^([a-z]{1,1000},){1,1000}$"},
    "5,000 optional properties": {"properties": {f"p{number}": {} for number in range(5000)}},
    "another file": {"$ref": "file:///etc/passwd"},
}
CASES = {
    **{f"grammar: {name}": ("grammar", text) for name, text in GRAMMARS.items()},
    **{
        f"schema: {name}": ("json_schema", schema if isinstance(schema, str) else json.dumps(schema))
        for name, schema in SCHEMAS.items()
    },
}


@pytest.mark.parametrize("name", CASES)
def test_refused_in_time_and_the_next_one_is_taken(trial: TrialProcess, name: str) -> None:
    kind, text = CASES[name]
    start = time.monotonic()
    with pytest.raises(BadRequest) as caught:
        trial.run(kind, text)
    assert time.monotonic() - start < SECONDS * BUSY
    assert str(caught.value).startswith(kind)
    assert len(str(caught.value)) < 1000
    assert trial.run("json_schema", SIMPLE)


TAKEN: dict[str, tuple[str, str]] = {
    "any object": ("json_schema", "{}"),
    "1,000 items": ("json_schema", json.dumps({"type": "array", "minItems": 1000, "maxItems": 1000})),
    "1,000 characters": ("json_schema", json.dumps({"type": "string", "maxLength": 1000})),
    "4,000 values": ("json_schema", json.dumps({"enum": [f"value{number}" for number in range(4000)]})),
    "64 optional properties": ("json_schema", json.dumps({"properties": {f"p{i}": {} for i in range(64)}})),
    "nested repetitions": ("json_schema", json.dumps({"type": "string", "pattern": "^([a-z]{1,100},){1,30}$"})),
    "a list": ("json_schema", json.dumps({"properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}})),
    "GBNF": ("grammar", 'root ::= (item "\\n")+\nitem ::= "- " [^\\n]+'),
    "nested GBNF": ("grammar", "root ::= " + "(" * 32 + '"a"{1,3}' + ")" * 32),
}


@pytest.mark.parametrize("name", TAKEN)
def test_taken(trial: TrialProcess, name: str) -> None:
    assert "root ::= " in trial.run(*TAKEN[name])


def running(trial: TrialProcess) -> subprocess.Popen[bytes]:
    """The process, started when the last test has ended it."""
    trial.run("json_schema", SIMPLE)
    assert trial._process is not None
    return trial._process


def test_process_ends_itself_by_cpu_time(trial: TrialProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not go on when nobody waits for it any more."""
    monkeypatch.setattr(helper, "ANSWER_SECONDS", 60)
    with pytest.raises(BadRequest) as caught:
        trial.run("grammar", GRAMMARS["many ways to read six optional letters"])
    assert str(caught.value) == (
        f"grammar is not usable: it ends the process that tries it (status -{signal.SIGPROF:d}); make it simpler"
    )


def test_process_that_dies_is_replaced(trial: TrialProcess) -> None:
    process = running(trial)
    process.kill()
    process.wait()
    assert trial.run("json_schema", SIMPLE)
    assert trial._process is not process


def test_process_that_dies_while_it_is_asked(trial: TrialProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    process = running(trial)
    not_noticed_yet, poll = [None], process.poll
    monkeypatch.setattr(process, "poll", lambda: not_noticed_yet.pop() if not_noticed_yet else poll())
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(Unavailable, match="json_schema could not be tried: its process was killed; try again later"):
        trial.run("json_schema", SIMPLE)
    assert trial.run("json_schema", SIMPLE)


def test_process_that_does_not_read(trial: TrialProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "ANSWER_SECONDS", 0.5)
    process = running(trial)
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(Unavailable, match=r"json_schema could not be tried within 0\.5 s; try again later"):
        trial.run("json_schema", " " * 65_536 * 8)
    assert process.poll() is not None
    monkeypatch.undo()
    assert trial.run("json_schema", SIMPLE)


def test_nothing_is_left_behind(wheel_directory: Path) -> None:
    open_files = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        process = TrialProcess(DEMO, sys.executable)
        child = running(process)
        process.close()
        process.close()
        assert child.poll() is not None
        with pytest.raises(Unavailable, match="the model is being unloaded"):
            process.run("json_schema", SIMPLE)
    assert len(os.listdir("/proc/self/fd")) == open_files


def test_close_does_not_wait_for_a_trial(wheel_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "ANSWER_SECONDS", 60)
    process = TrialProcess(DEMO, sys.executable)
    os.kill(running(process).pid, signal.SIGSTOP)
    outcomes: list[Exception] = []

    def run() -> None:
        try:
            process.run("json_schema", SIMPLE)
        except Unavailable as error:
            outcomes.append(error)

    waiting = threading.Thread(target=run)
    waiting.start()
    time.sleep(0.2)
    process.close()
    waiting.join(5)
    assert len(outcomes) == 1


def test_close_while_a_process_starts(wheel_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = TrialProcess(DEMO, sys.executable)
    start = subprocess.Popen

    def start_late(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        process._is_closed = True  # as `close` does it, which sees no process yet
        return start(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", start_late)
    with pytest.raises(Unavailable):
        process.run("json_schema", SIMPLE)
    assert process._process is None


def test_what_could_not_be_tried_is_tried_again(trial: TrialProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "ANSWER_SECONDS", 0.5)
    constraints = Constraints(trial, allow_grammar=False)
    sampling = parse_sampling({"json_schema": SIMPLE}, {}, 64)
    os.kill(running(trial).pid, signal.SIGSTOP)
    with pytest.raises(Unavailable):
        constraints.apply(sampling)
    monkeypatch.undo()
    assert constraints.apply(sampling).grammar


@pytest.mark.parametrize(
    ("path", "words"), [("/no/such.gguf", "the vocabulary can't be loaded"), ("/dev/null", "loaded")]
)
def test_process_that_can_not_start(wheel_directory: Path, path: str, words: str) -> None:
    with pytest.raises(Unavailable, match=words):
        TrialProcess(Path(path), sys.executable).run("json_schema", SIMPLE)
    with pytest.raises((Unavailable, OSError)):
        TrialProcess(DEMO, "/bin/false").run("json_schema", SIMPLE)


ANSWERS: dict[str, Any] = {
    "person": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 12},
            "age": {"type": "integer", "minimum": 1, "maximum": 120},
            "kind": {"enum": ["small", "smaller", "large"]},
        },
        "required": ["name", "age"],
    },
    "numbers": {
        "type": "array",
        "items": {"type": "number", "minimum": -5, "maximum": 5},
        "minItems": 2,
        "maxItems": 4,
    },
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-\\d{3}(-[a-f]+)?$"},
    "others": {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "boolean"}},
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_answers_fit_the_schema(trial: TrialProcess, open_asker: OpenAsker, name: str, temperature: float) -> None:
    gate = Constraints(trial, allow_grammar=False)
    schema = ANSWERS[name]
    grammar = gate.apply(parse_sampling({"json_schema": json.dumps(schema)}, {}, 512)).grammar
    asker = open_asker("demo")
    ended = 0
    for seed in range(8 if temperature else 1):
        options: dict[str, Any] = {
            "grammar": grammar,
            "temperature": temperature,
            "seed": seed,
            "max_tokens": 300,
            "stop": [],
        }
        answer = asker.raw("What is Triton?", **options)
        if answer.summary.finish_reason == "stop":
            ended += 1
            jsonschema.validate(json.loads(answer.text), schema)
        else:
            assert answer.summary.finish_reason == "length"
    assert ended or name == "others", "only where nothing bounds a string it may go on to the end"
