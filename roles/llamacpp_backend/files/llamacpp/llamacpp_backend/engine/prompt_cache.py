"""Who holds which tokens: gives an answer the slot, and as much of its tokens, as is there already.

Three places hold prefixes: idle slots (taken over as they are), running slots (copied) and the store (restored). A
dense model's slot can be cut back to any length; a hybrid's only stands where it is, or goes back to a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..errors import EngineFailure
from .checkpoints import prefill_marks
from .lookup import NOTHING, Lookup, Slot, Source, may_share
from .runner import Runner
from .sequence import Answer, State
from .store import Entry, Ledger, StateStore, common_prefix, entry_bytes

MAX_CHECKPOINTS = 32  # of one slot
# A state that can't be had costs its reuse and no more: the jobs that run need none of it.
_NOT_SAVED = (EngineFailure, MemoryError)


@dataclass(frozen=True)
class CacheLimits:
    """`n_bytes`: memory for states and checkpoints; 0: only what slots still hold is used again.

    `checkpoint_every`: tokens, 0: only at turns and at the end.
    `min_reuse`: a copy must bring this many tokens more than what needs none. `min_save`: what is shorter is not kept.
    """

    n_bytes: int
    checkpoint_every: int
    min_reuse: int = 16
    min_save: int = 32


class PromptCache:
    """The slots of a runner, and the saved states."""

    def __init__(self, runner: Runner, limits: CacheLimits, log_error: Callable[[str], None]) -> None:
        self._runner = runner
        self._limits = limits
        self._log_error = log_error
        self._rewinds = runner.can_rewind
        self._slots = [Slot(index) for index in range(runner.n_slots)]
        self._ledger = Ledger()
        self._store = StateStore(self._ledger)
        self._lookup = Lookup(self._slots, self._store, limits.min_reuse, runner.can_rewind)
        self._uses = 0
        self._too_long = 1 << 62  # a slot of this length has a state that is larger than the whole cache

    @property
    def n_bytes(self) -> int:
        """Memory that saved states and checkpoints take."""
        return self._ledger.total

    @property
    def n_entries(self) -> int:
        """Saved states."""
        return len(self._store)

    @property
    def n_held(self) -> int:
        """Tokens in all slots, idle ones included."""
        return sum(slot.held for slot in self._slots)

    def admit(self, answer: Answer) -> None:
        """Give the answer a slot, of which one must be idle, and in it what there is of its tokens already.

        When another answer is just computing more of them, it `follows` that one instead.
        """
        source, common = self._lookup.find(answer, None)
        leader = None if answer.is_suspect else self._lookup.leader(answer, source.length)
        if leader is not None:
            source = NOTHING
        taken = source.place if isinstance(source.place, Slot) and source.place.owner is None else None
        slot = taken or self._spare()
        if taken is None and not source.length and leader is None:
            source = self._lookup.in_place(slot, answer)
        self._fill(slot, answer, source)
        answer.follows = leader
        if not self._rewinds and self._limits.n_bytes and may_share(answer):
            self._mark(answer, common)

    def settle(self, follower: Answer) -> bool:
        """Copy what it waits for once that is there, or the best there is once its leader has gone; False: not yet."""
        leader = follower.follows
        if leader is not None and leader.state is State.PREFILL and leader.fed < follower.reach:
            return False
        slot = self._slot_of(follower)
        self._fill(slot, follower, self._lookup.find(follower, slot)[0])
        follower.follows = None
        return True

    def fork(self, leader: Answer, follower: Answer) -> None:
        """Make the follower, which has the same tokens, stand where its leader stands."""
        source = self._slot_of(leader)
        self._fill(self._slot_of(follower), follower, Source(leader.fed, leader.fed, source))
        follower.follows = None

    def checkpoint(self, answer: Answer) -> None:
        """Keep a hybrid's recurrent state at its present length, if there is memory for it."""
        if not self._limits.n_bytes:
            return
        slot = self._slot_of(answer)
        try:
            blob = self._runner.save_checkpoint(slot.index)
        except _NOT_SAVED as error:
            self._log_error(f"no checkpoint of slot {slot.index} could be saved: {error!r}")
            return
        while len(slot.checkpoints) >= MAX_CHECKPOINTS or not self._make_room(len(blob)):
            if len(slot.checkpoints) < 2:
                return
            # The first ends the system prompt, the last are where the next turn begins.
            self._ledger.drop((slot.checkpoints.pop(sorted(slot.checkpoints)[1]),))
        slot.checkpoints[answer.fed] = blob
        self._ledger.hold(blob)

    def release(self, answer: Answer) -> None:
        """Take the answer's slot from it. What the slot holds stays, to be used again."""
        slot = self._slot_of(answer)
        slot.length = answer.fed
        slot.owner = answer.slot = None
        answer.fed = 0
        self._touch(slot)
        if slot.is_private:
            self._forget(slot)

    def reset(self, answer: Answer) -> None:
        """Empty the slot of an answer: it has to be fed from its first token again."""
        slot = self._slot_of(answer)
        self._forget(slot)
        answer.fed = 0
        if not answer.count:
            answer.cached = 0

    def drop_idle(self, but: Slot | Entry | None = None) -> bool:
        """Empty the idle slot that was not used for the longest time; False when all of them are empty."""
        idle = [slot for slot in self._slots if slot.owner is None and slot.length and slot is not but]
        if not idle:
            return False
        slot = min(idle, key=lambda slot: slot.used)
        self._save(slot, 0)
        self._forget(slot)
        return True

    def clear(self) -> None:
        """Empty all slots, whoever owns them. What is saved stays."""
        for slot in self._slots:
            slot.owner = None
            self._forget(slot)

    def _slot_of(self, answer: Answer) -> Slot:
        if answer.slot is None:
            raise ValueError("the answer has no slot")
        return self._slots[answer.slot]

    def _spare(self) -> Slot:
        """The idle slot to overwrite: the lowest, as slots in a row are computed together. What it holds is saved.

        Without memory for that it is the one that was not used for the longest time.
        """
        idle = [slot for slot in self._slots if slot.owner is None]
        return idle[0] if self._limits.n_bytes else min(idle, key=lambda slot: slot.used)

    def _touch(self, slot: Slot) -> None:
        self._uses += 1
        slot.used = self._uses

    def _mark(self, answer: Answer, common: int) -> None:
        """Plan the checkpoints of a hybrid's prefill."""
        marks = prefill_marks(answer.tokens, self._runner.is_end, self._limits.checkpoint_every)
        answer.marks = [mark for mark in marks if mark > answer.fed]
        if common - answer.fed >= self._limits.min_reuse:
            answer.add_mark(common)  # an earlier request went another way from here, and the next may do so too
        if len(answer.ticket.answers) > 1 and len(answer.tokens) > 1:
            answer.add_mark(len(answer.tokens) - 1)  # for those of its siblings that get a slot only later

    def _fill(self, slot: Slot, answer: Answer, source: Source) -> None:
        """Make `slot` the answer's own and hold what the source has for it; nothing, if llama.cpp refuses."""
        source = source if source.length else NOTHING
        place = source.place
        # Read now: saving what the slot holds may cost the source its memory.
        kept = {} if place is None else {at: blob for at, blob in place.checkpoints.items() if at <= source.length}
        if isinstance(place, Entry):
            self._store.use(place)
        if slot.owner is None:
            self._save(slot, source.length if place is slot else 0)
        if place is not slot:
            if slot.held:
                self._runner.clear(slot.index)
                slot.length = 0
            if not self._find_room(source.held, place):
                source, place, kept = NOTHING, None, {}
        try:
            filled = self._copy(slot, source)
        except _NOT_SAVED as error:
            self._log_error(f"slot {slot.index} could not be filled, its prompt is computed: {error!r}")
            filled = False
        if not filled:
            self._runner.clear(slot.index)
            if isinstance(place, Entry):
                self._store.remove(place)
        slot.owner, slot.tokens, slot.is_private = answer, answer.tokens, not may_share(answer)
        answer.slot, answer.fed = slot.index, source.length if filled else 0
        if not answer.count:
            answer.cached = answer.fed
        self._adopt(slot, kept if filled else {})
        self._touch(slot)

    def _copy(self, slot: Slot, source: Source) -> bool:
        """Let llama.cpp do it; False, and an undefined slot, when it refuses."""
        place, runner, target = source.place, self._runner, slot.index
        if place is None:
            return True
        if isinstance(place, Entry):
            if not runner.restore(target, place.state, source.held):
                return False
        elif place is not slot:
            if self._rewinds or source.held == source.length:
                runner.copy(place.index, target)
            elif not runner.restore(target, runner.save(place.index), source.held):
                return False
        if source.held == source.length:
            return True
        if self._rewinds:
            runner.rewind(target, source.length)
            return True
        return runner.rollback(target, source.checkpoint, source.length)

    def _find_room(self, n_tokens: int, keep: Slot | Entry | None) -> bool:
        """In a shared pool: empty idle slots, but not `keep`, until so many more tokens fit."""
        while self.n_held + n_tokens > self._runner.n_cells:
            if not self.drop_idle(keep):
                return False
        return True

    def _adopt(self, slot: Slot, kept: Mapping[int, bytes]) -> None:
        """Let the slot keep those checkpoints and no others, the longest first if there is not memory for all."""
        old, slot.checkpoints = slot.checkpoints, {}
        for length in sorted(kept, reverse=True):
            blob = kept[length]
            if self._ledger.holds(blob) or self._make_room(len(blob)):
                slot.checkpoints[length] = blob
                self._ledger.hold(blob)
        self._ledger.drop(old.values())

    def _save(self, slot: Slot, keeps: int) -> None:
        """Save what an idle slot holds before all but its first `keeps` tokens are lost, if it is worth it."""
        is_worth_it = slot.length - keeps >= self._limits.min_save and not slot.is_private
        if not is_worth_it or not self._limits.n_bytes or slot.length >= self._too_long or self._is_saved(slot):
            return
        try:
            n_bytes = entry_bytes(slot.length, self._runner.state_bytes(slot.index))
            if n_bytes > self._limits.n_bytes:
                self._too_long = slot.length
                return
            if not self._make_room(n_bytes):  # before it is taken: the bound holds at any moment
                return
            tokens, state = slot.tokens[: slot.length], self._runner.save(slot.index)
        except _NOT_SAVED as error:
            self._log_error(f"what slot {slot.index} holds could not be saved: {error!r}")
            return
        for other in list(self._store):  # of a dense model the longer one serves for the shorter
            if self._rewinds and _begins(tokens, other.tokens):
                self._store.remove(other)
        # The checkpoints only now: some may have made room for the state.
        self._store.add(Entry(tokens, state, dict(slot.checkpoints)))

    def _is_saved(self, slot: Slot) -> bool:
        tokens = slot.tokens[: slot.length]
        return any(
            (len(entry.tokens) == slot.length or self._rewinds) and _begins(entry.tokens, tokens)
            for entry in self._store
        )

    def _make_room(self, n_bytes: int) -> bool:
        """Forget the least useful things until there is memory for so many bytes; False when it can't be had."""
        if n_bytes > self._limits.n_bytes:
            return False
        while self._ledger.total + n_bytes > self._limits.n_bytes:
            if self._store.evict():
                continue
            idle = [slot for slot in self._slots if slot.owner is None and slot.checkpoints]
            if not idle:
                return False
            self._drop_checkpoints(min(idle, key=lambda slot: slot.used))
        return True

    def _drop_checkpoints(self, slot: Slot) -> None:
        self._ledger.drop(slot.checkpoints.values())
        slot.checkpoints = {}

    def _forget(self, slot: Slot) -> None:
        self._drop_checkpoints(slot)
        self._runner.clear(slot.index)
        slot.length = 0


def _begins(tokens: list[int], beginning: list[int]) -> bool:
    return len(beginning) <= len(tokens) and common_prefix(tokens, beginning, len(beginning)) == len(beginning)
