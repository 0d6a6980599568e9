"""Ask each model for a real answer. Health can't tell: it stays green when a model's process has died."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tritonctl import observe
from tritonctl.client import Client
from tritonctl.deadline import Deadline
from tritonctl.desired import Golden
from tritonctl.errors import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_TIMEOUT,
    ServerRefused,
    TimedOut,
)
from tritonctl.observe import Unit
from tritonctl.progress import Progress
from tritonctl.reconcile import Target, differences

# For a model that declares no golden prompts: any text will do, no text will not.
_PROBE = Golden(prompt="Hello", equals=None, contains=None, max_tokens=4)


@dataclass(frozen=True)
class Check:
    """One generation. error: None when the answer was as expected; text: None when there was no answer."""

    golden: Golden
    text: str | None
    error: str | None
    timed_out: bool
    seconds: float


@dataclass(frozen=True)
class Verdict:
    """All checks of a model. state_errors: what is wrong with its units, apart from the answers."""

    model: str
    state_errors: tuple[str, ...]
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return not self.state_errors and all(check.error is None for check in self.checks)

    @property
    def exit_code(self) -> int:
        if any(check.timed_out for check in self.checks):
            return EXIT_TIMEOUT
        return EXIT_OK if self.ok else EXIT_FAILED


def verify(
    client: Client,
    target: Target,
    golden: tuple[Golden, ...],
    observed: Mapping[str, Unit],
    timeout: float,
    progress: Progress,
) -> Verdict:
    """Check one model. timeout: seconds for each generation. Raises Unreachable when the server is gone."""
    faults = differences(target, observed)
    state_errors = tuple(
        f"{unit} {fault}" + (f": {reason}" if (reason := _reason(observed.get(unit))) else "")
        for unit, fault in faults.items()
    )
    front = observed.get(target.name)
    if front is None or front.state != observe.READY:
        return Verdict(target.name, state_errors, ())
    checks = tuple(_check(client, target.name, item, timeout, progress) for item in golden or (_PROBE,))
    return Verdict(target.name, state_errors, checks)


def _reason(unit: Unit | None) -> str | None:
    return unit.reason if unit else None


def _check(client: Client, model: str, golden: Golden, timeout: float, progress: Progress) -> Check:
    deadline = Deadline(timeout)
    text, error, timed_out = None, None, False
    begin = time.monotonic()
    try:
        with progress.during(f"generation by {model}", deadline):
            text = _text_of(client.infer(model, _request(golden), deadline))
        error = _judge(golden, text)
    except TimedOut as exception:
        error, timed_out = str(exception), True
    except ServerRefused as exception:
        error = exception.reason
        if "Stub process" in exception.reason:
            # Not unload and load: once a request has met the dead process, an unload never ends (2.51).
            error += " (the model's process has died; `systemctl restart triton` replaces it)"
    return Check(golden, text, error, timed_out, time.monotonic() - begin)


def _request(golden: Golden) -> dict[str, Any]:
    parameters: dict[str, Any] = {"temperature": 0.0}
    if golden.max_tokens is not None:
        parameters["max_tokens"] = golden.max_tokens
    return {
        "parameters": parameters,
        "inputs": [{"name": "prompt", "shape": [1], "datatype": "BYTES", "data": [golden.prompt]}],
        "outputs": [{"name": "generated_text"}],
    }


def _text_of(answer: dict[str, Any]) -> str:
    outputs = answer.get("outputs")
    for output in outputs if isinstance(outputs, list) else []:
        if isinstance(output, dict) and output.get("name") == "generated_text":
            data = output.get("data")
            if isinstance(data, list) and len(data) == 1 and isinstance(data[0], str):
                return data[0]
    raise ServerRefused(200, f"the answer has no generated_text of one string: {str(answer)[:200]}")


def _judge(golden: Golden, text: str) -> str | None:
    if golden.equals is not None:
        return None if text == golden.equals else f"the answer is not equal to {golden.equals!r}: {text!r}"
    if golden.contains is not None:
        found = golden.contains in text
        return None if found else f"the answer does not contain {golden.contains!r}: {text!r}"
    return None if text.strip() else f"the answer is empty: {text!r}"


def exit_code(verdicts: list[Verdict]) -> int:
    """A time-out weighs more than a wrong answer."""
    codes = {verdict.exit_code for verdict in verdicts}
    return next((code for code in (EXIT_TIMEOUT, EXIT_FAILED) if code in codes), EXIT_OK)
