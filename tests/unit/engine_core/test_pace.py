"""The prefill budget: bounded by measured time, and a controller that settles."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llamacpp_backend.engine.pace import ADDED_RATIO, LEAST_BUDGET, RECALIBRATE_AFTER, Pace


def drive(pace: Pace, cost: Callable[[int, int], float], steps: int, wish: int = 512) -> list[tuple[int, float]]:
    """Steps of four rows with as much prefill as allowed; returns (tokens, seconds added) of those with prefill."""
    seen = []
    for _ in range(steps):
        n_prefill = min(wish, pace.budget(4))
        seconds = cost(4, n_prefill)
        pace.measured(4, n_prefill, seconds)
        if n_prefill:
            seen.append((n_prefill, seconds - cost(4, 0)))
    return seen


@given(
    quiet=st.floats(0.001, 0.2),
    fixed=st.floats(0, 0.2),
    per_token=st.floats(0.0001, 0.02),
    bound_ms=st.sampled_from([0, 20, 100]),
)
def test_it_settles_below_the_bound_where_that_can_be_held(
    quiet: float, fixed: float, per_token: float, bound_ms: float
) -> None:
    def cost(_rows: int, n_prefill: int) -> float:
        return quiet + (fixed + per_token * n_prefill if n_prefill else 0)

    bound = bound_ms / 1000 or max(ADDED_RATIO * quiet, 0.002)
    pace = Pace(bound_ms)
    pace.measured(0, 64, fixed + per_token * 64)
    settled = drive(pace, cost, 120)[-40:]
    for n_prefill, added in settled:
        assert n_prefill == LEAST_BUDGET or added <= 1.3 * bound
    # Nor does it stay needlessly low: the most it settled on uses at least half of the bound, or all that was wished.
    n_prefill, added = max(settled)
    assert added >= 0.5 * bound or n_prefill == 512 or n_prefill == LEAST_BUDGET


def test_the_first_budget_comes_from_the_prefill_speed() -> None:
    pace = Pace(100)
    pace.measured(0, 100, 1.0)  # 10 ms a token
    pace.measured(1, 0, 0.05)
    assert pace.budget(1) == 10


def test_a_quiet_step_is_measured_first_and_again_from_time_to_time() -> None:
    pace = Pace()
    assert pace.budget(2) == 0
    pace.measured(2, 0, 0.01)
    for _ in range(RECALIBRATE_AFTER):
        assert pace.budget(2) > 0
        pace.measured(2, pace.budget(2), 0.02)
    assert pace.budget(2) == 0
    pace.measured(2, 0, 0.01)
    assert pace.budget(2) > 0


def test_other_numbers_of_rows_have_their_own_quiet_step() -> None:
    pace = Pace()
    pace.measured(1, 0, 0.03)
    assert pace.budget(1) > 0
    assert pace.budget(8) == 0


def test_one_slow_step_halves_the_budget_at_most() -> None:
    pace = Pace(100)
    pace.measured(0, 100, 0.1)
    pace.measured(1, 0, 0.01)
    before = pace.budget(1)
    pace.measured(1, before, 60.0)
    assert pace.budget(1) == pytest.approx(before / 2, abs=1)


def test_a_short_chunk_that_was_fast_says_nothing_about_long_ones() -> None:
    pace = Pace(100)
    pace.measured(0, 100, 0.1)
    pace.measured(1, 0, 0.01)
    before = pace.budget(1)
    pace.measured(1, 1, 0.0101)
    assert pace.budget(1) == before
