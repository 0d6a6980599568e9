"""Where an answer's tokens are already, or will be: decisions of the prompt cache, without doing anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .sequence import Answer, State
from .store import Entry, StateStore, common_prefix


@dataclass(slots=True, eq=False)
class Slot:
    """A sequence of the context and what it holds: the first `held` of `tokens`."""

    index: int
    owner: Answer | None = None
    tokens: list[int] = field(default_factory=list)
    length: int = 0  # while idle
    is_private: bool = True  # nobody else may use what it holds
    checkpoints: dict[int, bytes] = field(default_factory=dict)  # of a hybrid, by length
    used: int = 0

    @property
    def held(self) -> int:
        """Tokens in the slot."""
        return self.length if self.owner is None else self.owner.fed


@dataclass(frozen=True, slots=True)
class Source:
    """`length` tokens that can be had from a slot or an entry which holds `held` of them."""

    length: int
    held: int
    place: Slot | Entry | None = None
    checkpoint: bytes = b""


NOTHING = Source(0, 0)


def may_share(answer: Answer) -> bool:
    """Whether the answer may use what others have computed, and they what it has."""
    return answer.sampling.cache_prompt


class Lookup:
    """Compares an answer's tokens with what slots and the store hold."""

    def __init__(self, slots: Sequence[Slot], store: StateStore, min_reuse: int, rewinds: bool) -> None:
        self._slots = slots
        self._store = store
        self._min_reuse = min_reuse
        self._rewinds = rewinds

    def find(self, answer: Answer, own: Slot | None) -> tuple[Source, int]:
        """The best source for the answer, whose slot is `own` if it has one; and the longest prefix seen anywhere.

        What needs no copy comes first; anything else must be better by min_reuse.
        """
        best, common = NOTHING, 0
        if not may_share(answer):
            return best, common
        copies: list[Slot | Entry] = []
        for slot in self._slots:
            if slot is own or slot.is_private:
                continue
            if own is not None or slot.owner is not None:
                copies.append(slot)
                continue
            source, shared = self._usable(slot, slot.tokens, slot.held, slot.checkpoints, answer)
            common = max(common, shared)
            if source.length > best.length and source.length >= self._min_reuse:
                best = source
        needed = best.length + self._min_reuse
        for place in [*copies, *self._store]:
            held = place.held if isinstance(place, Slot) else len(place.tokens)
            source, shared = self._usable(place, place.tokens, held, place.checkpoints, answer)
            common = max(common, shared)
            if source.length >= needed and source.length > best.length:
                best = source
        return best, common

    def in_place(self, slot: Slot, answer: Answer) -> Source:
        """What an idle slot holds of the answer's tokens, however little."""
        if slot.is_private or not may_share(answer):
            return NOTHING
        return self._usable(slot, slot.tokens, slot.held, slot.checkpoints, answer)[0]

    def _usable(
        self, place: Slot | Entry, tokens: list[int], held: int, checkpoints: Mapping[int, bytes], answer: Answer
    ) -> tuple[Source, int]:
        """What can be used of a place, and how much of it is common. The last token must be fed for its logits."""
        common = common_prefix(tokens, answer.tokens, min(held, len(answer.tokens) - 1))
        if self._rewinds or common == held:
            return Source(common, held, place), common
        length = max((length for length in checkpoints if length <= common), default=0)
        return Source(length, held, place, checkpoints.get(length, b"")), common

    def leader(self, answer: Answer, have: int) -> Answer | None:
        """The running prefill that will hold most of the answer's tokens, if waiting for it pays; sets `reach`."""
        best: Answer | None = None
        for slot in self._slots:
            owner = slot.owner
            if owner is None or owner.state is not State.PREFILL:
                continue
            shared = common_prefix(owner.tokens, answer.tokens, min(len(owner.tokens), len(answer.tokens)))
            same = shared == len(owner.tokens) == len(answer.tokens)
            if same and owner.ticket is answer.ticket:
                answer.reach = shared
                return owner
            reach = shared if same else min(shared, len(answer.tokens) - 1)
            gain = reach - max(have, owner.fed, answer.reach if best else 0)
            if may_share(answer) and not slot.is_private and gain >= self._min_reuse:
                best, answer.reach = owner, reach
        if best is not None and not self._rewinds and answer.reach < len(best.tokens):
            best.add_mark(answer.reach)  # a hybrid can be copied only where it stands
        return best
