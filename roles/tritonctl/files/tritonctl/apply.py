"""Carry actions out, one by one, each within its time limit; a model that fails does not stop the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tritonctl import observe
from tritonctl.client import Client
from tritonctl.deadline import Deadline
from tritonctl.errors import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_TIMEOUT,
    EXIT_UNREACHABLE,
    ServerRefused,
    TimedOut,
    TritonctlError,
    Unreachable,
)
from tritonctl.names import model_of
from tritonctl.observe import Unit
from tritonctl.progress import Progress
from tritonctl.reconcile import UNLOAD, Action, Target, reconcile

DONE = "done"
FAILED = "failed"
TIMED_OUT = "timed_out"
SKIPPED = "skipped"
PLANNED = "planned"

_SHORTEST_POLL_S = 0.05
_LONGEST_POLL_S = 0.5
# A question asked when time is nearly up still gets this long: "still UNLOADING" says more than "no answer".
_LAST_QUESTION_S = 5.0


@dataclass(frozen=True)
class Outcome:
    """What became of an action. started: the server was asked, so something may have changed."""

    action: Action
    result: str
    started: bool
    error: str | None
    seconds: float


@dataclass(frozen=True)
class Run:
    """All outcomes in order. lost: why the server could not be reached any more, None when it could."""

    outcomes: tuple[Outcome, ...]
    lost: str | None = None

    @property
    def changed(self) -> bool:
        return any(outcome.started or outcome.result == PLANNED for outcome in self.outcomes)

    @property
    def exit_code(self) -> int:
        results = {outcome.result for outcome in self.outcomes}
        if self.lost is not None:
            return EXIT_UNREACHABLE
        if TIMED_OUT in results:
            return EXIT_TIMEOUT
        return EXIT_FAILED if FAILED in results else EXIT_OK


class Applier:
    """Brings targets about on the server behind `client`.

    timeout: seconds for each load and for each unload. tell: called with each outcome as it comes.
    """

    def __init__(self, client: Client, timeout: float, progress: Progress, tell: Callable[[Outcome], None]) -> None:
        self._client = client
        self._timeout = timeout
        self._progress = progress
        self._tell = tell

    def plan(self, targets: Sequence[Target], only: Iterable[str] | None = None) -> Run:
        """What `run` would do, from the state of this moment."""
        actions = reconcile(targets, _restrict(observe.units(self._client, self._deadline()), only))
        return self._all([Outcome(action, PLANNED, False, None, 0.0) for action in actions])

    def run(self, targets: Sequence[Target], only: Iterable[str] | None = None) -> Run:
        """Reconcile and act. only: the units to look at; None for all, strangers to be unloaded too."""
        stuck = self._settle(only)
        actions = reconcile(targets, _restrict(observe.units(self._client, self._deadline()), only))
        broken: dict[str, str] = {}
        outcomes: list[Outcome] = []
        lost: str | None = None
        for action in actions:
            if action.model in stuck:
                outcome = Outcome(action, TIMED_OUT, False, stuck[action.model], 0.0)
            elif lost is not None:
                outcome = Outcome(action, SKIPPED, False, "the server is gone", 0.0)
            elif action.model in broken:
                outcome = Outcome(action, SKIPPED, False, f"{broken[action.model]} was not done", 0.0)
            else:
                outcome, lost = self._carry_out(action)
            if outcome.result in (FAILED, TIMED_OUT):
                broken.setdefault(action.model, f"the {action.kind} of {action.unit}")
            outcomes.append(outcome)
            self._tell(outcome)
        return Run(tuple(outcomes), lost)

    def _all(self, outcomes: list[Outcome]) -> Run:
        for outcome in outcomes:
            self._tell(outcome)
        return Run(tuple(outcomes))

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout)

    def _settle(self, only: Iterable[str] | None) -> dict[str, str]:
        """Wait for loads and unloads that are under way: what they end in decides what is to do.

        Returns the reason for each model that has a unit still in transit when the time is over.
        """
        deadline = self._deadline()

        def in_transit() -> list[Unit]:
            found = _restrict(observe.from_index(self._client.index(self._deadline())), only)
            return [unit for unit in found.values() if unit.state in observe.IN_TRANSIT]

        units = in_transit()
        with self._progress.during("waiting for loads and unloads already under way", deadline):
            for pause in _pauses():
                if not units or deadline.expired:
                    break
                deadline.sleep(pause)
                units = in_transit()
        return {
            model_of(unit.name): f"{unit.name} was {unit.state} before and still is after "
            f"{self._timeout:g} s{_cure(unit)}"
            for unit in units
        }

    def _carry_out(self, action: Action) -> tuple[Outcome, str | None]:
        deadline = self._deadline()
        act = self._unload if action.kind == UNLOAD else self._load
        result, error, lost = DONE, None, None
        begin = time.monotonic()
        try:
            with self._progress.during(f"{action.kind} of {action.unit}", deadline):
                act(action, deadline)
        except TimedOut as exception:
            result, error = TIMED_OUT, str(exception)
        except Unreachable as exception:
            result, error, lost = FAILED, str(exception), str(exception)
        except ServerRefused as exception:
            result, error = FAILED, exception.reason
        except TritonctlError as exception:
            result, error = FAILED, str(exception)
        return Outcome(action, result, True, error, time.monotonic() - begin), lost

    def _unload(self, action: Action, deadline: Deadline) -> None:
        self._client.unload(action.unit, deadline)
        # Triton answers before the unload is over.
        for pause in _pauses():
            unit = self._state_of(action.unit, deadline)
            if unit.state != observe.READY and unit.state not in observe.IN_TRANSIT:
                return
            self._pause(pause, unit, deadline)

    def _load(self, action: Action, deadline: Deadline) -> None:
        self._client.load(action.unit, deadline)
        for pause in _pauses():
            unit = self._state_of(action.unit, deadline)
            if unit.state == observe.READY:
                self._check_served(action, unit, deadline)
                return
            if unit.state == observe.UNAVAILABLE:
                reason = unit.reason or "no reason given"
                raise TritonctlError(f"{action.unit} is UNAVAILABLE after its load: {reason}")
            self._pause(pause, unit, deadline)

    def _state_of(self, unit: str, deadline: Deadline) -> Unit:
        return observe.state_of(unit, self._client, Deadline(max(deadline.remaining, _LAST_QUESTION_S)))

    def _pause(self, seconds: float, unit: Unit, deadline: Deadline) -> None:
        if deadline.expired:
            raise TimedOut(f"{unit.name} is still {unit.state} after {deadline.seconds:g} s{_cure(unit)}")
        deadline.sleep(seconds)

    def _check_served(self, action: Action, unit: Unit, deadline: Deadline) -> None:
        if action.version is not None and unit.version != action.version:
            raise TritonctlError(
                f"{unit.name} serves version {unit.version}, wanted {action.version}"
                + (f": {unit.reason}" if unit.reason else "")
            )
        if action.revision is None:
            return
        revision = observe.served_revision(unit.name, self._client, deadline)
        if revision != action.revision:
            raise TritonctlError(
                f"{unit.name} serves revision {revision or 'none'}, wanted {action.revision}: "
                "the model repository and the desired set are not of one deployment"
            )


def _cure(unit: Unit) -> str:
    # Requests under way hold an unload up; one that met a dead process holds it up for ever (2.51).
    if unit.state != observe.UNLOADING:
        return ""
    return " (requests under way hold it up; if none are, only `systemctl restart triton` ends it)"


def _pauses() -> Iterable[float]:
    pause = _SHORTEST_POLL_S
    while True:
        yield pause
        pause = min(pause * 1.5, _LONGEST_POLL_S)


def _restrict(units: Mapping[str, Unit], only: Iterable[str] | None) -> dict[str, Unit]:
    return dict(units) if only is None else {name: units[name] for name in only if name in units}
