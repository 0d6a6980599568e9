"""How many prefill tokens a step may carry beside running answers, learned from how long steps take.

The clock is the caller's: only durations come in.
"""

from __future__ import annotations

# A step with prefill may take this many times the quiet step's time on top of it: together 2.5 times, which leaves
# something for noise below the threefold that streams are promised.
ADDED_RATIO = 1.5
# Below this the client can't tell, and chunks of a token or two would make prompts of small models crawl.
LEAST_BOUND = 0.002
LEAST_BUDGET = 4
# So many steps in a row carry prefill before one without it measures the quiet step again: it grows with the context.
RECALIBRATE_AFTER = 64
_FIRST_BUDGET = 32
_WEIGHT = 0.25  # of a new value in a running mean


class Pace:
    """A controller of the prefill budget.

    The time a chunk adds is no straight line of its length (another kernel, an extra pass on hybrids), so the budget
    is not computed from a rate: it shrinks at once when a step adds more than the bound, and grows while it adds less.
    """

    def __init__(self, bound_ms: float = 0) -> None:
        """`bound_ms`: what a prefill may add to the running answers' next token; 0: ADDED_RATIO of their own time."""
        self._bound = bound_ms / 1000
        self._quiet: dict[int, float] = {}  # seconds of a step without prefill, by its rows
        self._since_quiet: dict[int, int] = {}  # steps with prefill since then
        self._per_token: float | None = None  # seconds, when nothing decodes
        self._budget: float | None = None

    def budget(self, n_decode: int) -> int:
        """Most prefill tokens in the next step beside `n_decode` rows; 0 now and then, to measure a step without."""
        quiet = self._quiet.get(n_decode)
        if quiet is None or self._since_quiet[n_decode] >= RECALIBRATE_AFTER:
            return 0
        if self._budget is None:
            rate = self._per_token
            self._budget = self._bound_beside(quiet) / rate if rate else _FIRST_BUDGET
        return max(LEAST_BUDGET, int(self._budget))

    def measured(self, n_decode: int, n_prefill: int, seconds: float) -> None:
        """A step of `n_decode` rows and `n_prefill` tokens took that long."""
        if not n_prefill:
            self._quiet[n_decode] = _mean(self._quiet.get(n_decode), seconds)
            self._since_quiet[n_decode] = 0
        elif not n_decode:
            self._per_token = _mean(self._per_token, seconds / n_prefill)
        elif (quiet := self._quiet.get(n_decode)) is not None and self._budget is not None:
            self._since_quiet[n_decode] += 1
            change = self._bound_beside(quiet) / max(seconds - quiet, 1e-9)
            if change < 1:
                self._budget = max(LEAST_BUDGET, min(self._budget, n_prefill * max(change, 0.5)))
            elif n_prefill >= int(self._budget):  # a shorter chunk says nothing about longer ones
                self._budget *= min(change, 1.25)

    def _bound_beside(self, quiet: float) -> float:
        return self._bound or max(ADDED_RATIO * quiet, LEAST_BOUND)


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)
