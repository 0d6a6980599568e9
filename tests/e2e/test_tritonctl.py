"""tritonctl on a lab host, with the real Triton and the real model. Each test leaves the host as it was."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import kserve
import pytest

MODEL = "qwen_gguf"
ENGINE = f"{MODEL}_stream"
TOOL = "/usr/local/bin/tritonctl"
DESIRED = "/etc/triton/models.json"
REPOSITORY = "/var/lib/triton/models"
BROKEN = "tritonctl_test_broken"


def tool(host: Any, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and document of a command run with --json."""
    done = host.run([TOOL, *arguments, "--json"])
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return done.returncode, document


def steps(document: dict[str, Any]) -> list[str]:
    return [f"{action['action']} {action['unit']}: {action['result']}" for action in document["actions"]]


def units(document: dict[str, Any], model: str = MODEL) -> dict[str, dict[str, Any]]:
    (found,) = [item for item in document["models"] if item["name"] == model]
    return {unit["name"]: unit for unit in found["units"]}


def write(host: Any, path: str, text: str) -> None:
    assert host.run(["sh", "-c", 'mkdir -p "${1%/*}" && printf %s "$2" > "$1"', "sh", path, text]).returncode == 0


@pytest.fixture(autouse=True)
def _left_as_found(host: Any) -> Iterator[None]:
    code, before = tool(host, "apply", "--check")
    assert (code, before["actions"]) == (0, []), "the host is not at its desired set to begin with"
    yield
    code, after = tool(host, "apply")
    assert code == 0, after
    code, status = tool(host, "status")
    assert (code, status["ok"]) == (0, True)


@pytest.fixture
def desired_copy(host: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """A path for a desired set of the test's own, and the document that the host has."""
    path = f"/run/triton-test-models-{os.getpid()}.json"
    yield path, json.loads(host.run(["cat", DESIRED]).stdout)
    host.run(["rm", "-f", path])


@pytest.fixture
def broken_model(host: Any) -> Iterator[str]:
    """A front whose configuration names a backend that does not exist: its load is refused by the server."""
    config = f'name: "{BROKEN}"\nbackend: "there_is_no_such_backend"\n'
    write(host, f"{REPOSITORY}/{BROKEN}/config.pbtxt", config)
    write(host, f"{REPOSITORY}/{BROKEN}/1/model.json", "{}")
    yield BROKEN
    host.run(["rm", "-rf", f"{REPOSITORY}/{BROKEN}"])


def test_status(host: Any) -> None:
    code, document = tool(host, "status")
    assert code == 0
    assert document["server"]["live"] is True
    assert document["server"]["version"]
    release = document["release"]
    assert release["running"] == release["current"]
    assert release["running"].startswith("/opt/triton/releases/")
    assert release["restart_pending"] is False
    (wanted,) = [item for item in document["models"] if item["name"] == MODEL]
    for unit in units(document).values():
        assert unit["state"] == "READY"
        assert (unit["version"], unit["revision"]) == (wanted["version"], wanted["revision"])
    text = host.run([TOOL, "status"]).stdout
    assert "server   live" in text
    assert wanted["revision"] in text


def test_wait(host: Any) -> None:
    code, document = tool(host, "wait", "--timeout", "5")
    assert (code, document["ok"]) == (0, True)


def test_verify_asks_the_golden_prompts(host: Any) -> None:
    code, document = tool(host, "verify", MODEL)
    assert (code, document["ok"]) == (0, True)
    (model,) = document["models"]
    assert model["checks"]
    assert all(check["ok"] and check["text"] for check in model["checks"])


def test_verify_sees_a_wrong_answer(host: Any, desired_copy: tuple[str, dict[str, Any]]) -> None:
    path, document = desired_copy
    for model in document["models"]:
        model["golden"] = [{"prompt": "Hello", "equals": "no model says this: 8c1f", "max_tokens": 4}]
    write(host, path, json.dumps(document))
    code, verdict = tool(host, "verify", MODEL, "--desired", path)
    assert (code, verdict["ok"]) == (1, False)
    assert "not equal to" in verdict["models"][0]["checks"][0]["error"]


def test_unload_and_load_by_hand(host: Any, endpoints: dict[str, Any]) -> None:
    code, document = tool(host, "unload", MODEL)
    assert code == 0
    assert steps(document) == [f"unload {MODEL}: done", f"unload {ENGINE}: done"]
    assert "the desired set is unchanged" in document["note"]
    code, status = tool(host, "status")
    assert code == 1
    assert {unit["state"] for unit in units(status).values()} == {"UNAVAILABLE"}
    code, verdict = tool(host, "verify", MODEL)
    assert (code, verdict["ok"]) == (1, False)
    code, document = tool(host, "load", MODEL)
    assert code == 0
    assert steps(document) == [f"load {ENGINE}: done", f"load {MODEL}: done"]
    assert document["note"] is None
    assert kserve.infer(endpoints["http"], MODEL, "Hello!", max_tokens=4).status == 200


def test_apply_loads_what_is_missing_and_then_rests(host: Any) -> None:
    assert tool(host, "unload", MODEL)[0] == 0
    code, document = tool(host, "apply", "--check")
    assert (code, document["changed"]) == (0, True)
    assert steps(document) == [f"load {ENGINE}: planned", f"load {MODEL}: planned"]
    code, document = tool(host, "apply")
    assert (code, document["changed"]) == (0, True)
    code, document = tool(host, "apply")
    assert (code, document["changed"], document["actions"]) == (0, False, [])


def test_another_revision_is_reloaded_and_asserted(host: Any, desired_copy: tuple[str, dict[str, Any]]) -> None:
    """The files keep their revision, so what is served after the reload can't be what is wanted."""
    path, document = desired_copy
    for model in document["models"]:
        model["revision"] = "f" * 12
    write(host, path, json.dumps(document))
    code, applied = tool(host, "apply", "--desired", path)
    assert code == 1
    mine = [action for action in applied["actions"] if action["model"] == MODEL]
    assert [(action["action"], action["unit"], action["result"]) for action in mine] == [
        ("unload", MODEL, "done"),
        ("unload", ENGINE, "done"),
        ("load", ENGINE, "failed"),
        ("load", MODEL, "skipped"),
    ]
    assert "wanted ffffffffffff" in mine[2]["error"]


def test_a_broken_model_does_not_stop_the_others(
    host: Any, desired_copy: tuple[str, dict[str, Any]], broken_model: str
) -> None:
    path, document = desired_copy
    broken = {
        "name": broken_model,
        "version": 1,
        "state": "loaded",
        "revision": "0" * 12,
        "units": [broken_model],
    }
    document["models"].insert(0, broken)
    write(host, path, json.dumps(document))
    assert tool(host, "unload", MODEL)[0] == 0
    code, applied = tool(host, "apply", "--desired", path)
    assert code == 1
    assert steps(applied)[0] == f"load {broken_model}: failed"
    assert "there_is_no_such_backend" in applied["actions"][0]["error"]
    assert steps(applied)[1:] == [f"load {ENGINE}: done", f"load {MODEL}: done"]


def test_a_model_that_only_the_repository_has(host: Any, broken_model: str) -> None:
    code, document = tool(host, "load", broken_model)
    assert code == 1
    assert steps(document) == [f"load {broken_model}: failed"]


def test_an_unload_waits_for_the_generation_under_way(
    host: Any, endpoints: dict[str, Any], answers: dict[str, str]
) -> None:
    question = max(answers, key=lambda q: len(answers[q]))
    got: list[kserve.Answer] = []
    asking = threading.Thread(
        target=lambda: got.append(kserve.infer(endpoints["http"], MODEL, question, max_tokens=1024))
    )
    asking.start()
    time.sleep(0.3)
    code, _ = tool(host, "unload", MODEL)
    asking.join()
    assert code == 0
    assert got[0].status == 200
    assert got[0].output("generated_text") == answers[question]


def test_two_at_once_take_turns(host: Any) -> None:
    results: list[subprocess.CompletedProcess[str]] = []
    threads = [
        threading.Thread(target=lambda verb=verb: results.append(host.run([TOOL, verb, MODEL])))
        for verb in ("unload", "load", "unload", "load")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.returncode for result in results] == [0, 0, 0, 0], [result.stderr for result in results]


@pytest.mark.parametrize(
    ("name", "words"), [("../x", "not a model name"), (ENGINE, "names an engine"), ("nope", "no model")]
)
def test_bad_names(host: Any, name: str, words: str) -> None:
    code, document = tool(host, "load", name)
    assert code == 2
    assert words in document["error"]


def test_who_is_not_in_the_group_is_told_which_one(host: Any) -> None:
    done = host.run(["runuser", "-u", "nobody", "--", TOOL, "wait"])
    assert done.returncode == 3
    assert "triton-admin" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_connection_is_left_behind(host: Any) -> None:
    for command in ("status", "verify", "apply"):
        assert host.run([TOOL, command]).returncode == 0
    connected = host.run(["ss", "-H", "-x", "-p", "state", "established", "src", "/run/triton/http.sock"]).stdout
    # The processes of the models inherit what was open when they were forked; the server itself must hold nothing.
    assert "tritonserver" not in connected


def test_the_installed_tool_is_the_live_releases(host: Any) -> None:
    assert host.run(["readlink", TOOL]).stdout.strip() == "/opt/triton/current/bin/tritonctl"
    current = host.run(["readlink", "-f", "/opt/triton/current"]).stdout.strip()
    assert host.run(["find", f"{current}/tritonctl", "-name", "__pycache__"]).stdout == ""
