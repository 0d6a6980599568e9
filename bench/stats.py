"""The few statistics that the benchmarks need."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The value below which `percent` % lie, interpolated between neighbours; None of no values."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def geomean(ratios: Sequence[float]) -> float:
    """Geometric mean of positive ratios. Raises ValueError of none."""
    if not ratios:
        raise ValueError("there is no mean of nothing")
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
