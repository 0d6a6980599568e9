"""What the operator reads, and the JSON that machines read. Each JSON document is one object."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tritonctl.apply import DONE, PLANNED, Outcome, Run
from tritonctl.desired import Golden, Model
from tritonctl.observe import Unit
from tritonctl.status import ModelStatus, Release, Status
from tritonctl.verify import Check, Verdict

_COLUMNS = ("MODEL", "DESIRED", "UNIT", "STATE", "VERSION", "REVISION", "NOTE")
_PAST = {"load": "loaded", "unload": "unloaded"}


def status_json(status: Status) -> dict[str, Any]:
    server = status.server
    release = status.release
    return {
        "ok": status.exit_code == 0,
        "server": {
            "reachable": server is not None,
            "live": server.live if server else False,
            "ready": server.ready if server else False,
            "version": server.version if server else None,
        },
        "release": {
            "running": release.running,
            "current": release.current,
            "restart_pending": release.restart_pending,
        },
        "models": [_model_json(model) for model in status.models],
        "error": _text_or_none(status.error),
        "desired_error": _text_or_none(status.desired_error),
    }


def status_text(status: Status) -> str:
    server = status.server
    if server is None:
        lines = ["server   not reachable"]
    else:
        words = [
            "live" if server.live else "NOT live",
            "ready" if server.ready else "NOT ready",
            f"version {server.version}",
        ]
        lines = ["server   " + ", ".join(words)]
    lines.append("release  " + _release_text(status.release))
    if status.models:
        lines += ["", *_table(_COLUMNS, _rows(status))]
    else:
        lines.append("models   none")
    return "\n".join(lines)


def run_json(run: Run, check: bool, note: str | None = None) -> dict[str, Any]:
    return {
        "ok": run.exit_code == 0,
        "changed": run.changed,
        "check": check,
        "actions": [_outcome_json(outcome) for outcome in run.outcomes],
        "note": note,
        "error": run.lost,
    }


def outcome_text(outcome: Outcome) -> str:
    action = outcome.action
    if outcome.result == PLANNED:
        return f"would {action.kind} {action.unit}: {action.why}"
    if outcome.result == DONE:
        return f"{_PAST[action.kind]} {action.unit} in {outcome.seconds:.1f} s: {action.why}"
    word = outcome.result.replace("_", " ").upper()
    return f"{word}: {action.kind} of {action.unit}: {one_line(outcome.error or '')}"


def run_text(run: Run, check: bool) -> str:
    if not run.outcomes:
        return "nothing to do: all is as desired"
    if check:
        return f"{len(run.outcomes)} actions planned, nothing was changed"
    done = sum(outcome.result == DONE for outcome in run.outcomes)
    return f"{done} of {len(run.outcomes)} actions done"


def verify_json(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    return {
        "ok": all(verdict.ok for verdict in verdicts),
        "models": [
            {
                "name": verdict.model,
                "ok": verdict.ok,
                "state_errors": list(verdict.state_errors),
                "checks": [_check_json(check) for check in verdict.checks],
            }
            for verdict in verdicts
        ],
        "error": None,
    }


def verify_text(verdicts: Sequence[Verdict]) -> str:
    if not verdicts:
        return "nothing to verify: no model is to be loaded"
    lines = []
    for verdict in verdicts:
        right = sum(check.error is None for check in verdict.checks)
        head = "ok    " if verdict.ok else "FAILED"
        answers = f"{right} of {len(verdict.checks)} answers as expected" if verdict.checks else "not asked"
        lines.append(f"{head}  {verdict.model}: {answers}")
        lines += [f"        {one_line(error)}" for error in verdict.state_errors]
        for check in verdict.checks:
            answer = "FAILED: " + one_line(check.error) if check.error else "-> " + _shorten(check.text or "")
            lines.append(f"        {_shorten(check.golden.prompt)} ({check.seconds:.1f} s) {answer}")
    return "\n".join(lines)


def one_line(text: str, limit: int = 500) -> str:
    """The text fit for one line of a terminal: the server's reasons hold line breaks and tracebacks."""
    flat = "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
    return flat if len(flat) <= limit else flat[:limit] + "..."


def _text_or_none(error: object) -> str | None:
    return None if error is None else str(error)


def _model_json(model: ModelStatus) -> dict[str, Any]:
    wanted = model.wanted
    return {
        "name": model.name,
        "desired": wanted.state if wanted else None,
        "version": wanted.version if wanted else None,
        "revision": wanted.revision if wanted else None,
        "as_desired": not model.faults,
        "units": [
            {
                "name": unit.name,
                "state": unit.state,
                "version": unit.version,
                "revision": unit.revision,
                "reason": unit.reason,
                "fault": model.faults.get(unit.name),
            }
            for unit in model.units
        ],
    }


def _rows(status: Status) -> Iterable[tuple[str, ...]]:
    for model in status.models:
        desired = model.wanted.state if model.wanted else "-"
        if not model.units:
            yield (model.name, desired, "", "unknown", "", "", "")
        for position, unit in enumerate(model.units):
            head = (model.name, desired) if position == 0 else ("", "")
            yield (*head, unit.name, unit.state, *_served(model.wanted, unit), _note(model, unit))


def _served(wanted: Model | None, unit: Unit) -> tuple[str, str]:
    version = str(unit.version or "-")
    revision = unit.revision or "-"
    if wanted and wanted.state == "loaded":
        if unit.version != wanted.version:
            version += f" (wanted {wanted.version})"
        if unit.revision != wanted.revision:
            revision += f" (wanted {wanted.revision})"
    return version, revision


def _note(model: ModelStatus, unit: Unit) -> str:
    parts = [model.faults.get(unit.name), one_line(unit.reason) if unit.reason else None]
    return ": ".join(part for part in parts if part)


def _release_text(release: Release) -> str:
    if release.restart_pending:
        return f"running {release.running}, current {release.current}: restart pending (systemctl restart triton)"
    if release.running is None:
        return f"running none, current {release.current or 'none'}"
    return f"{release.running}" + ("" if release.current else " (there is no current)")


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    table = [header, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    action = outcome.action
    return {
        "action": action.kind,
        "model": action.model,
        "unit": action.unit,
        "why": action.why,
        "result": outcome.result,
        "error": outcome.error,
        "seconds": round(outcome.seconds, 3),
    }


def _check_json(check: Check) -> dict[str, Any]:
    return {
        "prompt": check.golden.prompt,
        "expected": _expected(check.golden),
        "text": check.text,
        "ok": check.error is None,
        "error": check.error,
        "seconds": round(check.seconds, 3),
    }


def _expected(golden: Golden) -> dict[str, Any]:
    if golden.equals is not None:
        return {"equals": golden.equals}
    return {"not_empty": True} if golden.contains is None else {"contains": golden.contains}


def _shorten(text: str) -> str:
    return one_line(text, limit=60)
