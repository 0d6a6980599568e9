"""From what is wanted and what is there to the actions between them. Pure: asks nobody, changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tritonctl.desired import Model
from tritonctl.names import ENGINE_SUFFIX, model_of
from tritonctl.observe import IN_TRANSIT, READY, Unit

LOAD = "load"
UNLOAD = "unload"


@dataclass(frozen=True)
class Target:
    """What a model's units, given in load order, shall be. version, revision: None when any will do."""

    name: str
    units: tuple[str, ...]
    loaded: bool
    version: int | None = None
    revision: str | None = None


@dataclass(frozen=True)
class Action:
    """One call. version, revision: what a loaded unit must serve, None when any will do."""

    kind: str
    model: str
    unit: str
    why: str
    version: int | None = None
    revision: str | None = None


def target_of(model: Model, loaded: bool | None = None) -> Target:
    """The target of an entry of the desired set; `loaded` overrides its state."""
    wanted = model.state == "loaded" if loaded is None else loaded
    return Target(model.name, model.units, wanted, model.version, model.revision)


def reconcile(targets: Sequence[Target], observed: Mapping[str, Unit]) -> list[Action]:
    """The actions that turn `observed` into `targets`, in order; empty when nothing is to do.

    Unwanted units go first, so that their memory is free before anything is loaded. A model whose engine must
    be loaded anew is unloaded front first and loaded engine first, the whole of it before the next model's
    turn: the old copy is gone before the new one comes, and the others go on serving.
    """
    known = {unit for target in targets for unit in target.units}
    strangers = sorted(set(observed) - known, key=lambda unit: (model_of(unit), unit.endswith(ENGINE_SUFFIX)))
    actions = [
        Action(UNLOAD, model_of(unit), unit, "not in the desired set")
        for unit in strangers
        if _occupies(observed.get(unit))
    ]
    for target in targets:
        if not target.loaded:
            actions += _unload(target.name, reversed(target.units), observed, "is not to be loaded")
    for target in targets:
        if target.loaded:
            actions += _load(target, observed)
    return actions


def differences(target: Target, observed: Mapping[str, Unit]) -> dict[str, str]:
    """Why each unit is not as the target wants it; a unit that is right is left out."""
    if target.loaded:
        found = {unit: _fault(target, observed.get(unit)) for unit in target.units}
    else:
        found = {unit: "is not to be loaded" if _occupies(observed.get(unit)) else None for unit in target.units}
    return {unit: fault for unit, fault in found.items() if fault}


def _load(target: Target, observed: Mapping[str, Unit]) -> list[Action]:
    faults = differences(target, observed)
    if not faults:
        return []
    first = min(target.units.index(unit) for unit in faults)
    # What comes after the first wrong unit stands on it, and is loaded anew with it.
    rest = target.units[first:]
    why = faults[target.units[first]]
    actions = _unload(target.name, reversed(rest), observed, why)
    for unit in rest:
        reason = faults.get(unit, f"{target.units[first]} is loaded anew")
        actions.append(Action(LOAD, target.name, unit, reason, target.version, target.revision))
    return actions


def _unload(model: str, units: Iterable[str], observed: Mapping[str, Unit], why: str) -> list[Action]:
    return [Action(UNLOAD, model, unit, why) for unit in units if _occupies(observed.get(unit))]


def _occupies(unit: Unit | None) -> bool:
    return unit is not None and (unit.state == READY or unit.state in IN_TRANSIT)


def _fault(target: Target, unit: Unit | None) -> str | None:
    if unit is None:
        return "not in the repository"
    if unit.state != READY:
        return "not loaded" if unit.reason is None else "its last load failed"
    if target.version is not None and unit.version != target.version:
        return f"serves version {unit.version}, wanted {target.version}"
    if target.revision is not None and unit.revision != target.revision:
        return f"serves revision {unit.revision or 'none'}, wanted {target.revision}"
    return None
