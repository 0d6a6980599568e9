"""Thousands of requests: every one is answered, and the processes that answered the first also answer the last.

A process of a model that dies is not started again by Triton, and a request in a few hundred was enough to end one.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kserve
from conftest import Host

MODEL = "qwen_gguf"
REQUESTS = 5000
CLIENTS = 8


def stubs(host: Host) -> list[str]:
    """Process ids and arguments of the models' processes."""
    return sorted(host.run(["pgrep", "-a", "-f", "^[^ ]*triton_python_backend_stub"]).stdout.splitlines())


def test_front_answers_thousands_of_requests(endpoints: dict[str, Any], host: Host, answers: dict[str, str]) -> None:
    before = stubs(host)
    assert len(before) >= 2, "neither the engine's process nor the front's is there"
    known = list(answers.items())

    def ask(number: int) -> str | None:
        """What is wrong with the answer, None when it is right."""
        question, expected = known[number % len(known)]
        text, tensor = question, "prompt"
        if number % 3 == 0:
            text, tensor = json.dumps([{"role": "user", "content": question}]), "messages"
        answer = kserve.infer(endpoints["http"], MODEL, text, tensor=tensor, max_tokens=4)
        # Four tokens may end within a character.
        if answer.status == 200 and expected.startswith(answer.output("generated_text").rstrip("\ufffd")):
            return None
        return f"{question}: {answer.status} {answer.body[:200]!r}"

    with ThreadPoolExecutor(CLIENTS) as pool:
        wrong = [outcome for outcome in pool.map(ask, range(REQUESTS)) if outcome]
    assert (len(wrong), wrong[:3]) == (0, [])
    assert stubs(host) == before
