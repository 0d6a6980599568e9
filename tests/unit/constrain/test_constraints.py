"""A constraint is tried once, remembered within bounds, and wrong ones stay wrong."""

from __future__ import annotations

import threading

import pytest
from llamacpp_backend.constrain import constraints
from llamacpp_backend.constrain.compiling import gbnf_of
from llamacpp_backend.constrain.constraints import Constraints
from llamacpp_backend.errors import BadRequest, Unavailable
from llamacpp_backend.parameters import Sampling, parse_sampling


class Trial:
    """Compiles in this process; notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.broken = False

    def run(self, kind: str, text: str) -> str:
        self.asked.append((kind, text))
        if self.broken:
            raise Unavailable("no process")
        return gbnf_of(kind, text)[0]


@pytest.fixture
def trial() -> Trial:
    return Trial()


def sampling(**given: object) -> Sampling:
    return parse_sampling(given, {}, 512)


def test_schema_becomes_a_grammar(trial: Trial) -> None:
    applied = Constraints(trial, allow_grammar=False).apply(sampling(json_schema='{"type": "null"}', top_k=7))
    assert (applied.grammar, applied.json_schema, applied.top_k) == ('root ::= "null"\n', None, 7)


def test_nothing_to_do(trial: Trial) -> None:
    given = sampling()
    assert Constraints(trial, allow_grammar=False).apply(given) is given
    assert trial.asked == []


def test_grammar_only_where_allowed(trial: Trial) -> None:
    given = sampling(grammar='root ::= "a" # b')
    assert Constraints(trial, allow_grammar=True).apply(given).grammar == 'root ::= "a"\n'
    with pytest.raises(BadRequest, match=r"grammar is not allowed on this model \(engine.allow_grammar\)"):
        Constraints(trial, allow_grammar=False).apply(given)
    assert len(trial.asked) == 1


def test_each_constraint_is_tried_once(trial: Trial) -> None:
    gate = Constraints(trial, allow_grammar=True)
    for _ in range(3):
        gate.apply(sampling(json_schema='{"type": "null"}'))
        with pytest.raises(BadRequest, match="grammar has no rule 'root'"):
            gate.apply(sampling(grammar='x ::= "a"'))
        with pytest.raises(BadRequest, match="json_schema is not JSON"):
            gate.apply(sampling(json_schema='x ::= "a"'))
    assert trial.asked == [
        ("json_schema", '{"type": "null"}'),
        ("grammar", 'x ::= "a"'),
        ("json_schema", 'x ::= "a"'),
    ]


def test_a_failure_of_the_trial_is_not_remembered(trial: Trial) -> None:
    gate = Constraints(trial, allow_grammar=False)
    trial.broken = True
    with pytest.raises(Unavailable):
        gate.apply(sampling(json_schema="{}"))
    trial.broken = False
    assert gate.apply(sampling(json_schema="{}")).grammar is not None


def test_what_is_remembered_is_bounded(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraints, "MAX_KEPT", 3)
    gate = Constraints(trial, allow_grammar=False)
    schemas = [f'{{"const": {number}}}' for number in range(4)]
    for schema in (*schemas[:3], schemas[0], schemas[3]):
        gate.apply(sampling(json_schema=schema))
    assert len(trial.asked) == 4
    gate.apply(sampling(json_schema=schemas[0]))
    assert len(trial.asked) == 4, "the one used last was kept"
    gate.apply(sampling(json_schema=schemas[1]))
    assert len(trial.asked) == 5, "the one not used for longest went"


def test_what_is_remembered_is_bounded_in_bytes(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraints, "MAX_KEPT_BYTES", 100)
    gate = Constraints(trial, allow_grammar=False)
    for number in (1, 2, 1, 2):
        gate.apply(sampling(json_schema=f'{{"const": "{str(number) * 70}"}}'))
    assert len(trial.asked) == 4


def test_threads_share_it(trial: Trial) -> None:
    gate = Constraints(trial, allow_grammar=False)
    results: list[str | None] = []

    def apply(number: int) -> None:
        results.extend(gate.apply(sampling(json_schema=f'{{"const": {number % 5}}}')).grammar for _ in range(20))

    threads = [threading.Thread(target=apply, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 160
    assert len(set(results)) == 5
