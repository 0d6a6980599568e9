"""What the server holds now: one Unit per Triton model, put together from its index and configurations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tritonctl.client import Client, IndexEntry
from tritonctl.deadline import Deadline
from tritonctl.errors import BadInput, ServerRefused

READY = "READY"
LOADING = "LOADING"
UNLOADING = "UNLOADING"
UNAVAILABLE = "UNAVAILABLE"
NOT_LOADED = "NOT_LOADED"  # in the repository, never loaded: the index gives no state
ABSENT = "ABSENT"  # not in the repository

IN_TRANSIT = (LOADING, UNLOADING)
_BY_WEIGHT = (READY, LOADING, UNLOADING, UNAVAILABLE)


@dataclass(frozen=True)
class Unit:
    """One Triton model.

    version: the version that unversioned requests reach (None unless READY); revision: the `revision`
    parameter of the served configuration (None when not READY or not set); reason: the server's text on a
    failed load.
    """

    name: str
    state: str
    version: int | None = None
    revision: str | None = None
    reason: str | None = None


def units(client: Client, deadline: Deadline) -> dict[str, Unit]:
    """All units that the server's index lists, with the revisions of those that serve."""
    return {unit.name: _with_revision(unit, client, deadline) for unit in from_index(client.index(deadline)).values()}


def from_index(entries: Iterable[IndexEntry]) -> dict[str, Unit]:
    """The units of an index, without revisions. The index has an entry for each version it has ever known."""
    versions: dict[str, list[IndexEntry]] = {}
    for entry in entries:
        versions.setdefault(entry.name, []).append(entry)
    return {name: _unit(name, group) for name, group in versions.items()}


def state_of(name: str, client: Client, deadline: Deadline) -> Unit:
    """One unit without its revision; ABSENT when the index does not list it."""
    return from_index(client.index(deadline)).get(name) or Unit(name, ABSENT)


def served_revision(name: str, client: Client, deadline: Deadline) -> str | None:
    """The `revision` parameter of the configuration that the unit serves, None when it has none."""
    parameter = client.config(name, deadline).get("parameters", {}).get("revision")
    value = parameter.get("string_value") if isinstance(parameter, dict) else None
    return value if isinstance(value, str) else None


def _unit(name: str, group: list[IndexEntry]) -> Unit:
    states = {entry.state for entry in group}
    state = next((s for s in _BY_WEIGHT if s in states), None)
    if state is None:
        return Unit(name, NOT_LOADED)
    serving = max((entry.version or 0 for entry in group if entry.state == READY), default=0)
    # A newer version can have failed while the old one goes on serving; a clean unload reads "unloaded".
    failed = [
        entry
        for entry in group
        if entry.state == UNAVAILABLE and entry.reason not in (None, "unloaded") and (entry.version or 0) >= serving
    ]
    reason = max(failed, key=lambda entry: entry.version or 0).reason if failed else None
    return Unit(name, state, version=serving or None, reason=reason)


def _with_revision(unit: Unit, client: Client, deadline: Deadline) -> Unit:
    if unit.state != READY:
        return unit
    try:
        revision = served_revision(unit.name, client, deadline)
    except (ServerRefused, BadInput):  # unloaded in between, or a name that we don't put into a URL
        return unit
    return Unit(unit.name, unit.state, unit.version, revision, unit.reason)
