"""Who waits, who has a slot, and who waits in a slot for what another is computing."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable

from .prompt_cache import PromptCache
from .runner import Runner
from .scheduler import cells_needed, newest, next_to_admit
from .sequence import Answer, State


class Roster:
    """`waiting`: oldest first. `running`: those with a slot, by ascending slot."""

    def __init__(self, runner: Runner, cache: PromptCache) -> None:
        self._cache = cache
        self._n_slots = runner.n_slots
        self._n_cells = runner.n_cells
        self.is_pool_shared = runner.n_cells < runner.n_slots * runner.n_ctx
        self.waiting: deque[Answer] = deque()
        self.running: list[Answer] = []
        self.followers: list[Answer] = []
        self.n_free = runner.n_slots
        self._is_full = False  # someone was preempted: nobody is admitted before someone has ended

    def add(self, answers: Iterable[Answer]) -> None:
        """Let answers wait for a slot."""
        self.waiting.extend(answers)

    def next(self) -> Answer | None:
        """The answer that can have a slot now."""
        if len(self.running) == self._n_slots or (self._is_full and self.running):
            return None
        return next_to_admit(self.waiting, self.running, self._n_cells)

    def seat(self, answer: Answer) -> None:
        """Give the first that waits a slot."""
        self.waiting.popleft()
        self._cache.admit(answer)
        answer.state = State.PREFILL
        if answer.follows is not None:
            self.followers.append(answer)
        insort(self.running, answer, key=_slot)
        self.n_free -= 1
        self._is_full = False

    def settle_followers(self) -> None:
        """Let those get on whose leader has come far enough, or has gone."""
        self.followers = [
            answer for answer in self.followers if answer.follows is not None and not self._cache.settle(answer)
        ]

    def retire(self, answer: Answer) -> None:
        """The answer is over, wherever it is."""
        if answer.slot is not None:
            self._unseat(answer)
            self._is_full = False
        elif answer in self.waiting:
            self.waiting.remove(answer)

    def preempt_newest(self) -> None:
        """Send the newest answer back to the head of the queue; its tokens are fed again later."""
        answer = newest(self.running)
        self._unseat(answer)
        answer.state = State.WAITING
        answer.follows = None
        self.waiting.appendleft(answer)
        self._is_full = True

    def is_overdrawn(self) -> bool:
        """Whether the running answers have more tokens than the shared pool has cells."""
        return self.is_pool_shared and len(self.running) > 1 and cells_needed(self.running) > self._n_cells

    def clear(self) -> None:
        """Forget everybody, whatever state they are in."""
        for answer in self.running:
            answer.slot = None
        self.waiting.clear()
        self.running.clear()
        self.followers.clear()
        self.n_free = self._n_slots
        self._is_full = False

    def _unseat(self, answer: Answer) -> None:
        self._cache.release(answer)
        self.running.remove(answer)
        if answer in self.followers:  # or an idle engine would hold it, and its client's reply
            self.followers.remove(answer)
        self.n_free += 1


def _slot(answer: Answer) -> int:
    return -1 if answer.slot is None else answer.slot
