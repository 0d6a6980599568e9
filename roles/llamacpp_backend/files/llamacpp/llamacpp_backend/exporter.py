"""The engine's figures -> Triton's metrics, once a second from a thread of its own.

Triton's own histograms take one message to the server for each value. Here a histogram is what Prometheus makes of
one anyway: counters NAME_bucket with the label `le`, NAME_sum and NAME_count; queries and dashboards see no difference.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, Protocol

from .engine.metrics import Family, Histogram, Scalar

INTERVAL_SECONDS = 1.0


class Series(Protocol):
    """One time series of Triton's."""

    def increment(self, value: float) -> None:
        """Add to it; only a gauge takes a negative value."""


class MakeSeries(Protocol):
    """Makes a series in Triton's registry."""

    def __call__(self, name: str, kind: Literal["counter", "gauge"], text: str, labels: Mapping[str, str]) -> Series:
        """`text` says what the metric is."""


@dataclass
class _Export:
    series: Series
    read: Callable[[], float]
    sent: float = 0.0


class Exporter:
    """Keeps Triton's series at what the engine counts. `refresh` brings the gauges up to date."""

    def __init__(
        self,
        families: Iterator[Family],
        labels: Mapping[str, str],
        make_series: MakeSeries,
        refresh: Callable[[], object],
        log_error: Callable[[str], None],
    ) -> None:
        self._refresh = refresh
        self._log_error = log_error
        self._exports = [
            _Export(make_series(name, kind, family.help, {**labels, **own}), read)
            for family in families
            for name, kind, own, read in _series(family)
        ]
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="llamacpp-metrics")
        self._thread.start()

    def close(self) -> None:
        """Export once more, then end the thread."""
        self._closing.set()
        self._thread.join()

    def _loop(self) -> None:
        closing = False
        while not closing:
            closing = self._closing.wait(INTERVAL_SECONDS)
            try:
                self._export()
            except Exception as error:  # figures are not worth a model
                self._log_error(f"metrics could not be exported: {error!r}")

    def _export(self) -> None:
        self._refresh()
        for export in self._exports:
            value = export.read()
            if value != export.sent:
                export.series.increment(value - export.sent)
                export.sent = value


_Read = Callable[[], float]


def _series(family: Family) -> Iterator[tuple[str, Literal["counter", "gauge"], dict[str, str], _Read]]:
    """Name, kind, labels and value of each series that a family becomes."""
    for label_value, source in family.series.items():
        labels = {family.label: label_value} if family.label else {}
        if isinstance(source, Scalar):
            yield family.name, "gauge" if family.kind == "gauge" else "counter", labels, _scalar(source)
        else:
            for place, edge in enumerate([*source.edges, "+Inf"]):
                yield f"{family.name}_bucket", "counter", {**labels, "le": str(edge)}, _bucket(source, place)
            yield f"{family.name}_sum", "counter", labels, _total(source)
            yield f"{family.name}_count", "counter", labels, _bucket(source, len(source.edges))


def _scalar(source: Scalar) -> _Read:
    return lambda: source.value


def _bucket(source: Histogram, place: int) -> _Read:
    """Values up to edge `place`, those up to the edges before included."""
    return lambda: list(accumulate(source.counts))[place]


def _total(source: Histogram) -> _Read:
    return lambda: source.total
