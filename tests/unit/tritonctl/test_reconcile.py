"""Properties of reconcile, played against a model of the server; and the orders that matter, spelled out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tritonctl.observe import ABSENT, LOADING, NOT_LOADED, READY, UNAVAILABLE, UNLOADING, Unit
from tritonctl.reconcile import Action, Target, differences, reconcile

OLD, NEW = "0" * 12, "1" * 12
NAMES = ("a", "b", "c")


def target(name: str, loaded: bool = True, version: int = 1, revision: str = NEW) -> Target:
    return Target(name, (f"{name}_stream", name), loaded, version, revision)


def ready(name: str, version: int = 1, revision: str | None = NEW) -> Unit:
    return Unit(name, READY, version, revision)


def world(*units: Unit) -> dict[str, Unit]:
    return {unit.name: unit for unit in units}


def play(actions: list[Action], observed: dict[str, Unit]) -> dict[str, Unit]:
    """The server after the actions, when each of them succeeds; refuses what a server would be harmed by."""
    after = dict(observed)
    for action in actions:
        before = after.get(action.unit)
        if action.kind == "unload":
            assert before is not None, action
            assert before.state in (READY, LOADING, UNLOADING), action
            after[action.unit] = Unit(action.unit, UNAVAILABLE)
        else:
            assert before is None or before.state not in (READY, LOADING, UNLOADING), "two copies in memory"
            after[action.unit] = Unit(action.unit, READY, action.version, action.revision)
    return after


def units(name: str) -> st.SearchStrategy[Unit]:
    serving = st.builds(Unit, st.just(name), st.just(READY), st.sampled_from([1, 2]), st.sampled_from([OLD, NEW, None]))
    idle = st.builds(Unit, st.just(name), st.sampled_from([NOT_LOADED, UNAVAILABLE, LOADING, UNLOADING, ABSENT]))
    return serving | idle


WORLDS = st.fixed_dictionaries({}, optional={unit: units(unit) for name in NAMES for unit in (f"{name}_stream", name)})
TARGETS = st.lists(
    st.builds(target, st.sampled_from(NAMES), st.booleans(), st.sampled_from([1, 2]), st.sampled_from([OLD, NEW])),
    unique_by=lambda t: t.name,
)


@given(TARGETS, WORLDS)
def test_leads_to_what_is_wanted_and_then_rests(targets: list[Target], observed: dict[str, Unit]) -> None:
    after = play(reconcile(targets, observed), observed)
    assert reconcile(targets, after) == []
    wanted = {unit for t in targets if t.loaded for unit in t.units}
    assert {name for name, unit in after.items() if unit.state == READY} == wanted
    assert all(differences(t, after) == {} for t in targets)


@given(TARGETS, WORLDS)
def test_front_leaves_first_and_comes_last(targets: list[Target], observed: dict[str, Unit]) -> None:
    actions = reconcile(targets, observed)
    done = [(action.kind, action.unit) for action in actions]
    for name in NAMES:
        front, engine = name, f"{name}_stream"
        if ("unload", front) in done and ("unload", engine) in done:
            assert done.index(("unload", front)) < done.index(("unload", engine))
        if ("load", front) in done and ("load", engine) in done:
            assert done.index(("load", engine)) < done.index(("load", front))


@given(TARGETS, WORLDS)
def test_a_serving_front_never_stands_on_an_engine_loaded_under_it(
    targets: list[Target], observed: dict[str, Unit]
) -> None:
    after = dict(observed)
    for action in reconcile(targets, observed):
        front = after.get(action.model)
        if action.kind == "load" and action.unit != action.model:
            assert front is None or front.state != READY
        after = play([action], after)


@given(TARGETS, WORLDS)
def test_what_is_right_is_left_alone(targets: list[Target], observed: dict[str, Unit]) -> None:
    touched = {action.model for action in reconcile(targets, observed)}
    for t in targets:
        if differences(t, observed) == {}:
            assert t.name not in touched


def steps(actions: list[Action]) -> list[str]:
    return [f"{action.kind} {action.unit}" for action in actions]


def test_another_revision() -> None:
    observed = world(ready("a_stream", revision=OLD), ready("a", revision=OLD))
    assert steps(reconcile([target("a")], observed)) == [
        "unload a",
        "unload a_stream",
        "load a_stream",
        "load a",
    ]


def test_another_version_of_the_same_revision() -> None:
    observed = world(ready("a_stream", version=2), ready("a", version=2))
    assert steps(reconcile([target("a")], observed)) == [
        "unload a",
        "unload a_stream",
        "load a_stream",
        "load a",
    ]


def test_a_front_alone_is_loaded_without_its_engine() -> None:
    observed = world(ready("a_stream"), Unit("a", UNAVAILABLE))
    assert steps(reconcile([target("a")], observed)) == ["load a"]


def test_strangers_leave_before_anything_is_loaded() -> None:
    observed = world(ready("z_stream"), ready("z"), Unit("y", NOT_LOADED))
    assert steps(reconcile([target("a")], observed)) == [
        "unload z",
        "unload z_stream",
        "load a_stream",
        "load a",
    ]


def test_models_are_reloaded_one_after_the_other() -> None:
    observed = world(*(ready(unit, revision=OLD) for unit in ("a_stream", "a", "b_stream", "b")))
    actions = reconcile([target("a"), target("b")], observed)
    assert [action.model for action in actions] == ["a"] * 4 + ["b"] * 4
