"""Start, stop, crash and reboot of the service, and what the unit is run with. The host is left as it was found."""

from __future__ import annotations

import json
import math
import re
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import kserve
import pytest

MODEL = "qwen_gguf"
SEND_CHUNKS = r"""
import socket

def send(connection):
    connection.sendall(b"POST /v2/models/qwen_gguf/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(200):
        connection.sendall(b"1\r\n \r\n" * 10_000)
    connection.sendall(b"0\r\n\r\n")
    print(connection.recv(64))

"""
SOCKETS = ["grpc.sock:8001", "http.sock", "metrics.sock"]


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.2)


def serves(endpoints: dict[str, Any], answers: dict[str, str]) -> bool:
    question, expected = next(iter(answers.items()))
    try:
        answer = kserve.infer(endpoints["http"], MODEL, question, max_tokens=1024)
    except OSError:
        return False
    return answer.status == 200 and bool(answer.output("generated_text") == expected)


def show(host: Any, unit: str, *properties: str) -> dict[str, str]:
    lines = host.run(["systemctl", "show", "-p", ",".join(properties), unit]).stdout.splitlines()
    return dict(line.split("=", 1) for line in lines)


@pytest.fixture(autouse=True)
def _serves_before_and_after(endpoints: dict[str, Any], answers: dict[str, str], host: Any) -> Any:
    assert serves(endpoints, answers)
    host.run(
        ["systemctl", "reset-failed", "triton.service"]
    )  # these tests start it more often than the unit's limit allows
    yield
    host.run(["systemctl", "start", "triton.service"])
    wait_until(lambda: serves(endpoints, answers), 60, "the model answers again")


def test_nothing_but_the_edge_listens(host: Any) -> None:
    lines = host.run(["ss", "-H", "-l", "-t", "-n", "-p"]).stdout.splitlines()
    listeners = {(re.split(r"\s+", line)[3].rsplit(":", 1)[1], "nginx" in line) for line in lines}
    assert {port for port, nginx in listeners if nginx} == {"8000", "8001", "8002"}
    assert "tritonserver" not in "".join(lines)


def test_who_may_reach_the_sockets(host: Any) -> None:
    there = sorted([*SOCKETS, "engines", "release", "service.fingerprint"])
    assert host.run(["ls", "-A", "/run/triton"]).stdout.split() == there
    assert host.run(["stat", "-c", "%a %U", "/run/triton/engines"]).stdout == "700 triton\n"
    connect = "import socket; socket.socket(socket.AF_UNIX).connect('/run/triton/http.sock'); print('connected')"
    assert host.run(["runuser", "-u", "triton-edge", "--", "python3", "-c", connect]).stdout == "connected\n"
    refused = host.run(["runuser", "-u", "nobody", "--", "python3", "-c", connect])
    assert refused.stdout == ""
    assert "PermissionError" in refused.stderr


def test_the_release_and_the_models_belong_to_root(host: Any) -> None:
    paths = ["/opt/triton/releases", "/var/lib/triton"]
    assert host.run(["find", *paths, "!", "-user", "root"]).stdout == ""
    assert host.run(["find", *paths, "-perm", "/022", "!", "-type", "l"]).stdout == ""


def test_files_for_many_requests(host: Any) -> None:
    pid = show(host, "triton.service", "MainPID")["MainPID"]
    (line,) = [line for line in host.run(["cat", f"/proc/{pid}/limits"]).stdout.splitlines() if "open files" in line]
    assert line.split()[3] == "16384"


def test_the_sandbox_holds(host: Any) -> None:
    properties = show(
        host, "triton.service", "PrivateNetwork", "ProtectSystem", "NoNewPrivileges", "MemoryDenyWriteExecute"
    )
    assert properties == {
        "PrivateNetwork": "yes", "ProtectSystem": "strict", "NoNewPrivileges": "yes", "MemoryDenyWriteExecute": "yes",
    }  # fmt: skip
    pid = show(host, "triton.service", "MainPID")["MainPID"]
    inside = ["nsenter", "--target", pid, "--mount", "--net", "--", "/bin/sh", "-c"]
    assert host.run([*inside, "touch /var/lib/triton/models/x"]).returncode != 0
    interfaces = host.run(["cat", f"/proc/{pid}/net/dev"]).stdout.splitlines()[2:]
    assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]
    assert "size=2097152k" in host.run([*inside, "grep ' /dev/shm tmpfs' /proc/mounts | tail -1"]).stdout
    score = host.run(["systemd-analyze", "security", "--no-pager", "triton.service"]).stdout.splitlines()[-1]
    match = re.search(r"([0-9.]+) (SAFE|OK|MEDIUM|EXPOSED|UNSAFE)", score)
    assert match is not None, score
    assert float(match[1]) < 1.5, score


def test_threads_follow_the_quota(host: Any) -> None:
    """Not the machine's cores. That the kernel enforces the limits is what the lab insists on."""
    quota = show(host, "triton.service", "CPUQuotaPerSecUSec")["CPUQuotaPerSecUSec"]
    cores = int(host.run(["nproc"]).stdout)
    allowed = cores if quota == "infinity" else min(cores, math.ceil(float(quota.removesuffix("s"))))
    journal = host.run(["journalctl", "-u", "triton.service", "--no-pager", "-o", "cat"]).stdout
    assert int(re.findall(r"threads (\d+) \(computed", journal)[-1]) == allowed


def test_memory_is_limited_as_declared(host: Any) -> None:
    limit = show(host, "triton.service", "MemoryMax")["MemoryMax"]
    text = host.run(["grep", "-h", "^MemoryMax=", "/etc/systemd/system/triton.service"]).stdout.strip()
    declared = {"": "infinity", "MemoryMax=3G": str(3 * 2**30)}
    assert limit == declared[text]


def test_the_journal_has_the_load_line_at_once_and_in_utf8(host: Any) -> None:
    journal = host.run(["journalctl", "-u", "triton.service", "--no-pager", "-o", "cat"]).stdout
    assert f"{MODEL}_stream" in journal
    assert "revision" in journal


def test_a_stop_lets_running_generations_finish(endpoints: dict[str, Any], answers: dict[str, str], host: Any) -> None:
    """Six long answers are on their way, and an idle client holds a connection to the edge."""
    url = urlsplit(endpoints["http"])
    parameters = {"temperature": 1.5, "max_tokens": 1500, "stop": "no such text", "seed": 7}
    with socket.create_connection((url.hostname, url.port)), ThreadPoolExecutor(7) as pool:
        running = [
            pool.submit(kserve.infer, endpoints["http"], MODEL, question, max_tokens=1024)
            for question in sorted(answers, key=lambda q: -len(answers[q]))[:6]
        ]
        streamed = pool.submit(lambda: list(kserve.stream(endpoints["http"], MODEL, text_input="a", **parameters)))
        time.sleep(0.3)
        unfinished = [future for future in running if not future.done()]
        stop = host.run(["systemctl", "stop", "triton.service"])
        assert stop.returncode == 0
        assert unfinished, "all answers were there before the stop: this run shows nothing"
        for question, future in zip(sorted(answers, key=lambda q: -len(answers[q]))[:6], running, strict=True):
            answer = future.result(timeout=60)
            assert answer.status == 200, answer.body
            assert answer.output("generated_text") == answers[question]
        assert streamed.result(timeout=60)[-1]["finish_reason"] in {"stop", "length"}
    assert show(host, "triton.service", "Result", "ActiveState") == {"Result": "success", "ActiveState": "inactive"}
    assert host.run(["pgrep", "-u", "triton"]).stdout == ""
    assert host.run(["ls", "-A", "/dev/shm"]).stdout == ""
    refused = kserve.call(f"{endpoints['http']}/v2/health/ready")
    assert (refused.status, refused.error) == (502, "the inference server is not answering")


def test_start_returns_when_the_server_answers(host: Any) -> None:
    host.run(["systemctl", "stop", "triton.service"])
    assert host.run(["systemctl", "start", "triton.service"]).returncode == 0
    status = json.loads(host.run(["tritonctl", "status", "--json"]).stdout)
    assert status["server"]["ready"] is True


def test_a_crash_restarts_the_server_and_brings_the_models_back(
    endpoints: dict[str, Any], answers: dict[str, str], host: Any
) -> None:
    before = show(host, "triton.service", "MainPID", "NRestarts")
    host.run(["kill", "-KILL", before["MainPID"]])
    wait_until(
        lambda: show(host, "triton.service", "MainPID")["MainPID"] not in {"0", before["MainPID"]}, 30, "a new process"
    )
    wait_until(lambda: serves(endpoints, answers), 60, "the models are back")
    assert int(show(host, "triton.service", "NRestarts")["NRestarts"]) == int(before["NRestarts"]) + 1


def test_the_edge_disarms_what_ends_triton(endpoints: dict[str, Any], host: Any) -> None:
    """Two million one-byte chunks end this Triton when they reach it as they are; the edge hands on a whole body."""
    before = show(host, "triton.service", "MainPID")["MainPID"]
    through_the_edge = f"{SEND_CHUNKS}send(socket.create_connection(('127.0.0.1', {urlsplit(endpoints['http']).port})))"
    answer = host.run(["python3", "-c", through_the_edge])
    assert "HTTP/1.1 500" in answer.stdout or "HTTP/1.1 4" in answer.stdout, answer
    assert show(host, "triton.service", "MainPID")["MainPID"] == before
    # The control: without the edge the same bytes do end it, so the check above can fail.
    past_the_edge = f"{SEND_CHUNKS}c = socket.socket(socket.AF_UNIX); c.connect('/run/triton/http.sock'); send(c)"
    host.run(["python3", "-c", past_the_edge])
    wait_until(lambda: show(host, "triton.service", "MainPID")["MainPID"] != before, 30, "the server has ended")


def test_a_reboot_brings_the_models_back(endpoints: dict[str, Any], answers: dict[str, str], host: Any) -> None:
    booted = host.run(["cat", "/proc/1/stat"]).stdout.split()[21]
    host.reboot()
    wait_until(lambda: serves(endpoints, answers), 90, "the models are back after a reboot")
    assert host.run(["cat", "/proc/1/stat"]).stdout.split()[21] != booted
    status = json.loads(host.run(["tritonctl", "status", "--json"]).stdout)
    assert status["ok"] is True
