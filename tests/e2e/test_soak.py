"""Mixed load, then the same again: what the service holds must not grow from one half to the next.

SOAK_SECONDS sets how long the load lasts (`make soak`: an hour); without it a short form runs.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from typing import Any

import kserve
import numpy as np
import tritonclient.grpc as grpcclient
from conftest import Host

MODEL = "qwen_gguf"
ENGINE = "qwen_gguf_stream"
SECONDS = int(os.environ.get("SOAK_SECONDS", "60"))
CLIENTS = 8
# Allocators keep a little of what they once had; a leak of a kilobyte a request would be ten times as much.
MAX_GROWTH_KB = 8 * 1024
SCHEMA = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})


def held(host: Host) -> dict[str, dict[str, int]]:
    """Resident memory in KiB and open files of each process of the service, and its shared memory in KiB."""
    pids = host.run(["pgrep", "-f", "^[^ ]*(tritonserver|triton_python_backend_stub)( |$)"]).stdout.split()
    assert len(pids) == 3, "tritonserver, the engine's process and the front's"
    found = {}
    for pid in pids:
        status = host.run(["cat", f"/proc/{pid}/status"]).stdout
        resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
        files = len(host.run(["ls", f"/proc/{pid}/fd"]).stdout.split())
        shared = host.run(["du", "-sk", f"/proc/{pid}/root/dev/shm"]).stdout.split()[0]
        found[pid] = {"resident_kb": resident, "files": files, "shared_kb": int(shared)}
    return found


class Load:
    """Clients of every kind, until they are told to stop."""

    def __init__(self, endpoints: dict[str, Any], answers: dict[str, str]) -> None:
        self._endpoints = endpoints
        self._known = list(answers.items())
        self._stop = threading.Event()
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []

    def run(self, seconds: float) -> None:
        threads = [threading.Thread(target=self._client, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        self._stop.wait(seconds)
        self._stop.set()
        for thread in threads:
            thread.join()
        self._stop.clear()

    def _client(self, number: int) -> None:
        order = random.Random(number)
        kinds = [self._plain, self._stream, self._leave, self._refused, self._several, self._constrained]
        while not self._stop.is_set():
            kind = order.choices(kinds, weights=(6, 4, 3, 2, 1, 1))[0]
            question, expected = order.choice(self._known)
            try:
                problem = kind(question, expected, order)
            except Exception as error:
                problem = repr(error)
            self.done[kind.__name__] += 1
            if problem:
                self.wrong.append(f"{kind.__name__}: {problem}")

    def _plain(self, question: str, expected: str, order: random.Random) -> str | None:
        answer = kserve.infer(self._endpoints["http"], MODEL, question, max_tokens=600)
        right = answer.status == 200 and answer.output("generated_text") == expected
        return None if right else str(answer.body[:200])

    def _stream(self, question: str, expected: str, order: random.Random) -> str | None:
        events = kserve.stream(self._endpoints["http"], MODEL, text_input=question, max_tokens=600)
        text = "".join(event["text_output"] for event in events)
        return None if text == expected else text[:200]

    def _leave(self, question: str, expected: str, order: random.Random) -> str | None:
        prompt = grpcclient.InferInput("prompt", [1], "BYTES")
        prompt.set_data_from_numpy(np.array([question.encode()], dtype=np.object_))
        with grpcclient.InferenceServerClient(self._endpoints["grpc"]) as client:
            client.start_stream(lambda result, error: None)
            client.async_stream_infer(ENGINE, [prompt], parameters={"max_tokens": 600, "ignore_eos": True})
            time.sleep(order.random() * 0.1)
            client.stop_stream(cancel_requests=True)
        return None

    def _refused(self, question: str, expected: str, order: random.Random) -> str | None:
        answer = kserve.infer(self._endpoints["http"], MODEL, question, temperature=-1.0)
        return None if answer.status == 400 else str(answer.status)

    def _several(self, question: str, expected: str, order: random.Random) -> str | None:
        answer = kserve.infer(self._endpoints["http"], MODEL, question, n=3, temperature=1.0, max_tokens=8, logprobs=1)
        return None if answer.status == 200 else str(answer.body[:200])

    def _constrained(self, question: str, expected: str, order: random.Random) -> str | None:
        answer = kserve.infer(self._endpoints["http"], MODEL, question, json_schema=SCHEMA, max_tokens=40)
        return None if answer.status == 200 else str(answer.body[:200])


def test_nothing_grows(endpoints: dict[str, Any], host: Host, answers: dict[str, str]) -> None:
    load = Load(endpoints, answers)
    load.run(SECONDS / 2)  # caches fill, buffers reach their size
    before = held(host)
    load.run(SECONDS / 2)
    time.sleep(2)
    after = held(host)
    assert (len(load.wrong), load.wrong[:3]) == (0, [])
    assert min(load.done[kind] for kind in ("_plain", "_stream", "_leave", "_refused", "_several", "_constrained")) > 0
    assert after.keys() == before.keys(), "a process has ended"
    for pid, figures in after.items():
        growth = {name: value - before[pid][name] for name, value in figures.items()}
        assert growth["resident_kb"] < MAX_GROWTH_KB, growth
        assert growth["shared_kb"] <= 1024, growth
        assert growth["files"] <= 2, growth
