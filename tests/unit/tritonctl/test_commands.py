"""Commands against a fake server, for answers that the real Triton can't be made to give on demand.

What a real one can show (loads, revisions, failures, stops) is tested against a lab host in
tests/e2e/test_tritonctl.py.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tritonctl import cli, status
from tritonctl.client import Client
from tritonctl.deadline import Deadline
from tritonctl.progress import Progress

REVISION = "0123456789ab"
LAUNCHER = Path(cli.__file__).parents[1] / "bin" / "tritonctl"


class Tool:
    """Runs a command against the fake with --json; returns exit code and the document."""

    def __init__(self, fake: Any, desired: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._fixed = ["--socket", fake.socket_path, "--desired", desired]
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        code = cli.main([*arguments, "--json", *self._fixed])
        document = json.loads(self._capsys.readouterr().out)
        assert isinstance(document, dict)
        return code, document

    def text(self, *arguments: str) -> tuple[int, str, str]:
        code = cli.main([*arguments, *self._fixed])
        captured = self._capsys.readouterr()
        return code, captured.out, captured.err


@pytest.fixture
def tool(fake: Any, write_desired: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> Tool:
    return Tool(fake, write_desired({"name": "demo"}), capsys)


def ready(name: str, version: str = "1") -> dict[str, str]:
    return {"name": name, "version": version, "state": "READY"}


def gone(name: str, version: str = "1", reason: str = "unloaded") -> dict[str, str]:
    return {"name": name, "version": version, "state": "UNAVAILABLE", "reason": reason}


def simulate(fake: Any, **states: str) -> dict[str, str]:
    """Let loads and unloads take effect at once; returns the live table of states."""
    table = dict(states)

    def index(_body: Any) -> tuple[int, object]:
        return 200, [
            {"name": name} if state == "" else {"name": name, "version": "1", "state": state}
            for name, state in table.items()
        ]

    def becomes(name: str, state: str) -> Callable[[Any], tuple[int, object]]:
        def act(_body: Any) -> tuple[int, object]:
            table[name] = state
            return 200, None

        return act

    fake.rules["POST /v2/repository/index"] = index
    for name in states:
        fake.serves(name, REVISION)
        fake.rules[f"POST /v2/repository/models/{name}/load"] = becomes(name, "READY")
        fake.rules[f"POST /v2/repository/models/{name}/unload"] = becomes(name, "UNAVAILABLE")
    return table


def test_entries_without_state_count_as_not_loaded(fake: Any, tool: Tool) -> None:
    simulate(fake, demo_stream="", demo="")
    code, document = tool("status")
    assert (code, document["ok"]) == (1, False)
    assert [unit["state"] for unit in document["models"][0]["units"]] == ["NOT_LOADED", "NOT_LOADED"]
    code, document = tool("apply")
    assert (code, document["ok"], document["changed"]) == (0, True, True)
    assert [action["unit"] for action in document["actions"]] == ["demo_stream", "demo"]
    code, document = tool("apply")
    assert (code, document["changed"], document["actions"]) == (0, False, [])


def test_check_changes_nothing(fake: Any, tool: Tool) -> None:
    simulate(fake, demo_stream="", demo="")
    code, document = tool("apply", "--check")
    assert (code, document["changed"], document["check"]) == (0, True, True)
    assert {action["result"] for action in document["actions"]} == {"planned"}
    assert not [request for request in fake.requests if request.endswith("load")]


def test_a_slow_unload_is_waited_for(fake: Any, tool: Tool) -> None:
    table = simulate(fake, demo_stream="READY", demo="READY")
    begin = time.monotonic()

    def unload(_body: Any) -> tuple[int, object]:
        table["demo"] = "UNLOADING"
        threading.Timer(0.6, table.__setitem__, ("demo", "UNAVAILABLE")).start()
        return 200, None

    fake.rules["POST /v2/repository/models/demo/unload"] = unload
    code, document = tool("unload", "demo")
    assert code == 0
    assert time.monotonic() - begin >= 0.6
    assert [action["unit"] for action in document["actions"]] == ["demo", "demo_stream"]
    assert "will load it" in document["note"]


def test_an_unload_that_never_ends_times_out(fake: Any, tool: Tool) -> None:
    table = simulate(fake, demo_stream="READY", demo="READY")

    def unload(_body: Any) -> tuple[int, object]:
        table["demo"] = "UNLOADING"
        return 200, None

    fake.rules["POST /v2/repository/models/demo/unload"] = unload
    code, document = tool("unload", "demo", "--timeout", "0.3")
    assert code == 4
    assert [action["result"] for action in document["actions"]] == ["timed_out", "skipped"]
    assert "still UNLOADING after 0.3 s" in document["actions"][0]["error"]
    assert "systemctl restart triton" in document["actions"][0]["error"]


def test_what_is_stuck_from_before_is_not_touched_and_the_others_are_done(
    fake: Any, write_desired: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    simulate(fake, a_stream="LOADING", a="", b_stream="", b="")
    tool = Tool(fake, write_desired({"name": "a"}, {"name": "b"}), capsys)
    code, document = tool("apply", "--timeout", "0.3")
    assert code == 4
    results = {(action["model"], action["result"]) for action in document["actions"]}
    assert results == {("a", "timed_out"), ("b", "done")}
    assert not [request for request in fake.requests if "/models/a" in request and request.endswith("load")]


def test_a_stuck_load_times_out(fake: Any, tool: Tool) -> None:
    simulate(fake, demo_stream="", demo="")

    def load(_body: Any) -> tuple[int, object]:
        fake.over.wait(10)
        return 200, None

    fake.rules["POST /v2/repository/models/demo_stream/load"] = load
    begin = time.monotonic()
    code, document = tool("apply", "--timeout", "0.4")
    assert code == 4
    assert time.monotonic() - begin < 5
    assert [action["result"] for action in document["actions"]] == ["timed_out", "skipped"]


def test_a_load_that_answers_well_and_never_gets_ready_times_out(fake: Any, tool: Tool) -> None:
    simulate(fake, demo_stream="", demo="")
    fake.rules["POST /v2/repository/models/demo_stream/load"] = (200, None)
    code, document = tool("load", "demo", "--timeout", "0.3")
    assert code == 4
    assert "still NOT_LOADED after 0.3 s" in document["actions"][0]["error"]


def test_a_refused_load_gives_the_servers_reason_and_the_next_model_is_loaded(
    fake: Any, write_desired: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    simulate(fake, a_stream="", a="", b_stream="", b="")
    fake.rules["POST /v2/repository/models/a_stream/load"] = (
        400,
        {"error": "load failed: bad magic\n\nAt: x"},
    )
    tool = Tool(fake, write_desired({"name": "a"}, {"name": "b"}), capsys)
    code, document = tool("apply")
    assert (code, document["ok"]) == (1, False)
    assert [action["result"] for action in document["actions"]] == ["failed", "skipped", "done", "done"]
    assert document["actions"][0]["error"] == "load failed: bad magic\n\nAt: x"


def test_an_error_in_a_200_is_an_error(fake: Any, tool: Tool) -> None:
    simulate(fake, demo_stream="READY", demo="READY")
    fake.rules["POST /v2/models/demo/infer"] = (200, {"error": "engine is out of order"})
    code, document = tool("verify")
    assert (code, document["ok"]) == (1, False)
    assert document["models"][0]["checks"][0]["error"] == "engine is out of order"


def test_old_version_that_goes_on_serving_is_not_as_desired(
    fake: Any, write_desired: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    simulate(fake, demo_stream="READY", demo="READY")
    fake.index(
        ready("demo_stream"),
        gone("demo_stream", "2", "Internal: bad magic"),
        ready("demo"),
        gone("demo", "2"),
    )
    code, document = Tool(fake, write_desired({"name": "demo", "version": 2}), capsys)("status")
    assert code == 1
    (engine, front) = document["models"][0]["units"]
    assert (engine["state"], engine["version"]) == ("READY", 1)
    assert engine["reason"] == "Internal: bad magic"
    assert engine["fault"] == "serves version 1, wanted 2"
    assert front["reason"] is None


def test_revision_is_asserted_after_the_load(fake: Any, tool: Tool) -> None:
    simulate(fake, demo_stream="", demo="")
    fake.serves("demo_stream", "ffffffffffff")
    code, document = tool("apply")
    assert code == 1
    assert "serves revision ffffffffffff, wanted 0123456789ab" in document["actions"][0]["error"]


def infer_answers(fake: Any, text: str) -> list[Any]:
    bodies: list[Any] = []

    def answer(body: Any) -> tuple[int, object]:
        bodies.append(body)
        return 200, {"outputs": [{"name": "generated_text", "datatype": "BYTES", "shape": [1], "data": [text]}]}

    fake.rules["POST /v2/models/demo/infer"] = answer
    return bodies


@pytest.mark.parametrize(
    ("golden", "text", "code"),
    [
        ([], "x", 0),
        ([], " \n", 1),
        ([{"prompt": "p", "equals": "a"}], "a", 0),
        ([{"prompt": "p", "equals": "a"}], "a ", 1),
        ([{"prompt": "p", "contains": "b"}], "abc", 0),
        ([{"prompt": "p", "contains": "b"}], "ac", 1),
        ([{"prompt": "p", "contains": "b"}, {"prompt": "p", "contains": "x"}], "abc", 1),
    ],
)
def test_verify_judges_the_text(
    fake: Any,
    write_desired: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    golden: list[Any],
    text: str,
    code: int,
) -> None:
    simulate(fake, demo_stream="READY", demo="READY")
    infer_answers(fake, text)
    assert Tool(fake, write_desired({"name": "demo", "golden": golden}), capsys)("verify")[0] == code


def test_verify_sends_the_declared_prompt(
    fake: Any, write_desired: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    simulate(fake, demo_stream="READY", demo="READY")
    bodies = infer_answers(fake, "a")
    golden = [{"prompt": "你好", "equals": "a", "max_tokens": 7}]
    Tool(fake, write_desired({"name": "demo", "golden": golden}), capsys)("verify", "demo")
    assert bodies[0]["inputs"][0]["data"] == ["你好"]
    assert bodies[0]["parameters"] == {"temperature": 0.0, "max_tokens": 7}


def test_verify_fails_on_the_wrong_revision_though_the_answer_is_right(fake: Any, tool: Tool) -> None:
    simulate(fake, demo_stream="READY", demo="READY")
    fake.serves("demo_stream", "ffffffffffff")
    infer_answers(fake, "fine")
    code, document = tool("verify")
    assert code == 1
    assert document["models"][0]["state_errors"] == ["demo_stream serves revision ffffffffffff, wanted 0123456789ab"]


def test_verify_of_a_dead_process_names_the_cure(fake: Any, tool: Tool) -> None:
    simulate(fake, demo_stream="READY", demo="READY")
    fake.rules["POST /v2/models/demo/infer"] = (500, {"error": "Stub process 'demo_0_0' is not healthy."})
    code, document = tool("verify")
    assert code == 1
    assert "systemctl restart triton" in document["models"][0]["checks"][0]["error"]


def test_an_answer_that_never_comes_times_out(fake: Any, tool: Tool) -> None:
    simulate(fake, demo_stream="READY", demo="READY")

    def never(_body: Any) -> tuple[int, object]:
        fake.over.wait(10)
        return 200, {}

    fake.rules["POST /v2/models/demo/infer"] = never
    assert tool("verify", "--timeout", "0.3")[0] == 4


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n[{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n[{[{[",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n[5]",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"",
    ],
    ids=[
        "not-http",
        "truncated",
        "truncated-into-json",
        "not-json",
        "not-a-list",
        "nameless",
        "truncated-chunk",
        "closed",
    ],
)
def test_garbage_is_told_from_a_server(fake: Any, tool: Tool, raw: bytes) -> None:
    fake.rules["POST /v2/repository/index"] = raw
    code, document = tool("apply")
    assert code == 3
    assert document["error"]
    assert "internal error" not in document["error"]


def test_server_that_goes_away_in_the_middle(fake: Any, tool: Tool) -> None:
    simulate(fake, demo_stream="", demo="")
    fake.rules["POST /v2/repository/models/demo_stream/load"] = b""
    code, document = tool("apply")
    assert code == 3
    assert [action["result"] for action in document["actions"]] == ["failed", "skipped"]
    assert "went away" in document["error"]


def test_every_connection_is_closed(fake: Any, tool: Tool) -> None:
    simulate(fake, demo_stream="", demo="")
    tool("apply")
    tool("status")
    assert set(fake.connection_headers) == {"close"}


@pytest.mark.parametrize("command", [["status"], ["apply"], ["load", "demo"], ["unload", "demo"], ["verify"]])
@pytest.mark.parametrize("kind", ["missing", "refused"])
def test_no_server(
    tmp_path: Path,
    write_desired: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    kind: str,
) -> None:
    path = tmp_path / "http.sock"
    if kind == "refused":
        with socket.socket(socket.AF_UNIX) as left_over:
            left_over.bind(str(path))
    assert cli.main([*command, "--socket", str(path), "--desired", write_desired({"name": "demo"})]) == 3
    error = capsys.readouterr().err
    assert str(path) in error
    assert ("no such socket" if kind == "missing" else "connection refused") in error


def test_permission_denied_names_the_group(fake: Any, tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forced: root, as whom the tests may run, is never denied."""

    def denied(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", denied)
    for command in (["status"], ["wait"], ["apply"]):
        code, document = tool(*command)
        assert code == 3
        assert "group triton-admin" in document["error"]


def test_wait_returns_when_the_server_comes(fake: Any, tool: Tool) -> None:
    fake.rules["GET /v2/health/live"] = (400, None)
    threading.Timer(0.4, fake.rules.__setitem__, ("GET /v2/health/live", (200, None))).start()
    code, document = tool("wait", "--timeout", "10")
    assert code == 0
    assert 0.3 < document["seconds"] < 5
    fake.rules["GET /v2/health/live"] = (400, None)
    code, document = tool("wait", "--timeout", "0.3")
    assert code == 4
    assert "not live" in document["error"]


def test_wait_for_a_socket_that_is_not_there_yet(fake: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    later = tmp_path / "later.sock"
    threading.Timer(0.3, later.symlink_to, (fake.socket_path,)).start()
    assert cli.main(["wait", "--socket", str(later), "--timeout", "10"]) == 0
    later.unlink()
    assert cli.main(["wait", "--socket", str(later), "--timeout", "0.3"]) == 4
    assert "no such socket" in capsys.readouterr().err


def test_only_one_changes_things(fake: Any, tool: Tool) -> None:
    simulate(fake, demo_stream="", demo="")
    handle = os.open(os.path.dirname(fake.socket_path), os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)  # keeps out only whoever wants to be alone
    for command in (["apply"], ["load", "demo"], ["unload", "demo"]):
        code, document = tool(*command, "--timeout", "0.3")
        assert code == 4
        assert "another tritonctl" in document["error"]
    assert tool("status")[0] == 1
    assert tool("apply", "--check")[0] == 0
    threading.Timer(0.5, os.close, (handle,)).start()
    code, out, error = tool.text("apply", "--timeout", "10")
    assert code == 0
    assert "waiting at most 10 s" in error
    assert "2 of 2 actions done" in out


def test_by_hand_without_the_desired_set(fake: Any, tool: Tool) -> None:
    table = simulate(fake, demo_stream="READY", demo="READY", other_stream="", other="")
    code, document = tool("load", "other")
    assert code == 0
    assert [action["unit"] for action in document["actions"]] == ["other_stream", "other"]
    assert "the desired set is unchanged" in document["note"]
    assert "will unload it" in document["note"]
    assert table["demo"] == "READY"
    code, document = tool("apply")
    assert [f"{a['action']} {a['unit']}" for a in document["actions"]] == [
        "unload other",
        "unload other_stream",
    ]


@pytest.mark.parametrize("name", ["nope", "demo_stream", "../demo", "a b", ""])
def test_bad_names_reach_no_url(fake: Any, tool: Tool, name: str) -> None:
    simulate(fake, demo_stream="", demo="")
    for command in ("load", "unload", "verify"):
        assert tool(command, name)[0] == 2
    assert set(fake.requests) <= {"POST /v2/repository/index"}


def test_missing_desired_set_changes_nothing(fake: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate(fake, demo_stream="READY", demo="READY")
    tool = Tool(fake, str(tmp_path / "none.json"), capsys)
    assert tool("apply")[0] == 2
    assert fake.requests == []
    code, document = tool("status")
    assert code == 2
    assert document["server"]["live"] is True
    assert "no desired set" in document["desired_error"]


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "x"])
def test_bad_timeouts(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["wait", f"--timeout={value}"])
    assert caught.value.code == 2
    assert repr(value) in capsys.readouterr().err


def test_restart_pending(fake: Any, tmp_path: Path) -> None:
    fake.index()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "release").symlink_to(tmp_path / "one")
    current = tmp_path / "current"
    current.symlink_to(tmp_path / "one")
    client = Client(fake.socket_path)
    assert not status.collect(client, [], None, Deadline(5), str(current)).release.restart_pending
    current.unlink()
    current.symlink_to(tmp_path / "two")
    assert status.collect(client, [], None, Deadline(5), str(current)).release.restart_pending


def test_progress_speaks_only_when_it_takes_long(capsys: pytest.CaptureFixture[str]) -> None:
    for enabled, seconds, spoken in ((True, 0.5, True), (True, 0.0, False), (False, 0.5, False)):
        with Progress(enabled, quiet_s=0.2, every_s=0.1).during("load of demo", Deadline(9)):
            time.sleep(seconds)
        assert ("load of demo: 0 s so far, at most 9 s" in capsys.readouterr().err) == spoken


def test_no_traceback_even_for_our_own_faults(fake: Any, tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: Any) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(Client, "index", fault)
    code, _, error = tool.text("apply")
    assert code == 1
    assert "internal error" in error
    assert "planted" in error
    assert "Traceback" not in error


def test_launcher_by_links_and_interrupted(fake: Any, tmp_path: Path, write_desired: Callable[..., str]) -> None:
    simulate(fake, demo_stream="", demo="")
    fake.rules["POST /v2/repository/models/demo_stream/load"] = lambda _body: (
        fake.over.wait(10),
        (200, None),
    )[1]
    (tmp_path / "current").symlink_to(LAUNCHER.parents[1])
    link = tmp_path / "tritonctl"
    link.symlink_to(tmp_path / "current" / "bin" / "tritonctl")
    process = subprocess.Popen(
        [
            sys.executable,
            link,
            "load",
            "demo",
            "--socket",
            fake.socket_path,
            "--desired",
            write_desired({"name": "demo"}),
        ],
        cwd="/",
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background has them ignore the signal, and a child inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 10
    while "POST /v2/repository/models/demo_stream/load" not in fake.requests:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=10)
    assert process.returncode == 130
    assert error.startswith("tritonctl: interrupted")
    assert "Traceback" not in error


@pytest.mark.parametrize("command", ["", "status", "load", "unload", "apply", "verify", "wait"])
def test_help_teaches(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([*command.split(), "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "exit codes:" in text
    assert f"tritonctl {command}" in text
