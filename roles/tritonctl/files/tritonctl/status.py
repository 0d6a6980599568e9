"""What is wanted, what is there, and where they differ. Reads only."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tritonctl import observe
from tritonctl.client import Client
from tritonctl.deadline import Deadline
from tritonctl.desired import Model
from tritonctl.errors import EXIT_FAILED, EXIT_OK, TritonctlError
from tritonctl.names import ENGINE_SUFFIX, model_of
from tritonctl.observe import Unit
from tritonctl.reconcile import differences, target_of

CURRENT_RELEASE = "/opt/triton/current"
_RUNNING_LINK = "release"  # beside the socket, made at each start of the server


@dataclass(frozen=True)
class Server:
    live: bool
    ready: bool
    version: str


@dataclass(frozen=True)
class Release:
    """Where the links end, None where there is none. running: what the server was started from."""

    running: str | None
    current: str | None

    @property
    def restart_pending(self) -> bool:
        return self.running is not None and self.current is not None and self.running != self.current


@dataclass(frozen=True)
class ModelStatus:
    """One model. wanted: its entry in the desired set, if it has one; faults: per unit, why it differs."""

    name: str
    wanted: Model | None
    units: tuple[Unit, ...]
    faults: Mapping[str, str]


@dataclass(frozen=True)
class Status:
    """server: None when it could not be asked, then `error` says why and no unit's state is known.

    desired_error: why the desired set could not be read, else None.
    """

    server: Server | None
    error: TritonctlError | None
    release: Release
    models: tuple[ModelStatus, ...]
    desired_error: TritonctlError | None

    @property
    def exit_code(self) -> int:
        if self.error is not None:
            return self.error.exit_code
        if self.desired_error is not None:
            return self.desired_error.exit_code
        return EXIT_FAILED if any(model.faults for model in self.models) else EXIT_OK


def collect(
    client: Client,
    models: Sequence[Model],
    desired_error: TritonctlError | None,
    deadline: Deadline,
    current_link: str = CURRENT_RELEASE,
) -> Status:
    """Ask the server; what can't be asked is left open and explained."""
    running_link = os.path.join(os.path.dirname(os.path.abspath(client.socket_path)), _RUNNING_LINK)
    release = Release(_end_of(running_link), _end_of(current_link))
    try:
        server = Server(client.live(deadline), client.ready(deadline), client.server_version(deadline))
        units = observe.units(client, deadline)
    except TritonctlError as error:
        unknown = tuple(ModelStatus(model.name, model, (), {}) for model in models)
        return Status(None, error, release, unknown, desired_error)
    return Status(server, None, release, tuple(_models(models, units)), desired_error)


def _models(wanted: Sequence[Model], units: Mapping[str, Unit]) -> list[ModelStatus]:
    result = [
        ModelStatus(
            model.name,
            model,
            tuple(units.get(name) or Unit(name, observe.ABSENT) for name in model.units),
            differences(target_of(model), units),
        )
        for model in wanted
    ]
    known = {name for model in wanted for name in model.units}
    others: dict[str, list[Unit]] = {}
    for name in sorted(set(units) - known, key=lambda n: (model_of(n), not n.endswith(ENGINE_SUFFIX))):
        others.setdefault(model_of(name), []).append(units[name])
    for name, group in others.items():
        faults = {
            unit.name: "is loaded, and not in the desired set"
            for unit in group
            if unit.state == observe.READY or unit.state in observe.IN_TRANSIT
        }
        result.append(ModelStatus(name, None, tuple(group), faults))
    return result


def _end_of(link: str) -> str | None:
    return os.path.realpath(link) if os.path.lexists(link) else None
