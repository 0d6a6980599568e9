"""The engine's figures as Triton's series: gauges, counters, and histograms as Prometheus has them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from llamacpp_backend import exporter
from llamacpp_backend.engine.metrics import Family, Histogram, Metrics, Scalar
from llamacpp_backend.exporter import Exporter

Wait = Callable[[Callable[[], bool]], None]


class Registry:
    """Triton's metrics: refuses what Triton refuses, a counter that goes back and a series that is there already."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.messages = 0

    def make(self, name: str, kind: str, text: str, labels: Mapping[str, str]) -> Any:
        assert text
        key = name + "{" + ",".join(f'{label}="{value}"' for label, value in labels.items()) + "}"
        assert key not in self.values
        self.values[key] = 0
        registry = self

        class Series:
            def increment(self, value: float) -> None:
                assert kind == "gauge" or value >= 0
                registry.values[key] += value
                registry.messages += 1

        return Series()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setattr(exporter, "INTERVAL_SECONDS", 0.002)
    return Registry()


def export(registry: Registry, *families: Family, refresh: Callable[[], object] = lambda: None) -> list[str]:
    """Export once; returns the errors."""
    errors: list[str] = []
    Exporter(iter(families), {"model_name": "demo"}, registry.make, refresh, errors.append).close()
    return errors


def test_counter_and_gauge(registry: Registry) -> None:
    reasons = {"stop": Scalar(3), "length": Scalar(0)}
    export(registry, Family("g", "gauge", "x", {"": Scalar(0.5)}), Family("c", "counter", "x", reasons, "reason"))
    assert registry.values == {
        'g{model_name="demo"}': 0.5,
        'c{model_name="demo",reason="stop"}': 3,
        'c{model_name="demo",reason="length"}': 0,
    }


def test_histogram_is_cumulative(registry: Registry) -> None:
    histogram = Histogram((0.5, 2))
    for value in (0.25, 0.5, 1, 7):
        histogram.observe(value)
    export(registry, Family("h", "histogram", "x", {"": histogram}))
    assert registry.values == {
        'h_bucket{model_name="demo",le="0.5"}': 2,
        'h_bucket{model_name="demo",le="2"}': 3,
        'h_bucket{model_name="demo",le="+Inf"}': 4,
        'h_sum{model_name="demo"}': 8.75,
        'h_count{model_name="demo"}': 4,
    }


@pytest.fixture
def running(registry: Registry) -> Iterator[Scalar]:
    gauge = Scalar()
    running = Exporter(
        iter([Family("g", "gauge", "x", {"": gauge})]), {}, registry.make, lambda: None, lambda _line: None
    )
    yield gauge
    running.close()
    assert not running._thread.is_alive()


def test_changes_follow_and_nothing_is_sent_twice(registry: Registry, running: Scalar, wait_until: Wait) -> None:
    for value in (4.0, 1.0, 2.5):
        running.value = value
        wait_until(lambda value=value: registry.values["g{}"] == value)  # type: ignore[misc]
    messages = registry.messages
    threading.Event().wait(0.05)
    assert registry.messages == messages == 3


def test_refresh_comes_before_reading(registry: Registry) -> None:
    gauge = Scalar()

    def refresh() -> None:
        gauge.value = 7

    export(registry, Family("g", "gauge", "x", {"": gauge}), refresh=refresh)
    assert registry.values == {'g{model_name="demo"}': 7}


def test_failure_is_logged_and_does_not_end_the_thread(registry: Registry, wait_until: Wait) -> None:
    errors: list[str] = []

    def broken() -> None:
        raise RuntimeError("no registry")

    running = Exporter(iter([]), {}, registry.make, broken, errors.append)
    wait_until(lambda: len(errors) >= 2)
    running.close()
    assert errors[0] == "metrics could not be exported: RuntimeError('no registry')"


def test_the_engines_own_families_become_series_of_their_own(registry: Registry) -> None:
    metrics = Metrics(1024)
    metrics.ttft.observe(0.003)
    metrics.finished["stop"].value += 1
    assert export(registry, *metrics.families()) == []
    assert registry.values['vllm:time_to_first_token_seconds_bucket{model_name="demo",le="0.005"}'] == 1
    assert registry.values['vllm:request_success_total{model_name="demo",finished_reason="stop"}'] == 1
