"""Saved prefixes: states of slots with the tokens they hold, least recently used first out, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

_BYTES_PER_TOKEN = 8  # of the list of tokens that goes with a state
# Looking one up compares prompts; small models would keep thousands in the same memory.
MAX_ENTRIES = 64


class Ledger:
    """Bytes of all blobs that the cache holds. One that is held in several places takes memory, and counts, once."""

    def __init__(self) -> None:
        self.total = 0
        self._holders: dict[int, int] = {}

    def hold(self, blob: bytes) -> None:
        """One more place holds the blob."""
        key = id(blob)
        held = self._holders.get(key, 0)
        self._holders[key] = held + 1
        if not held:
            self.total += len(blob)

    def holds(self, blob: bytes) -> bool:
        """Whether any place holds the blob."""
        return id(blob) in self._holders

    def drop(self, blobs: Iterable[bytes]) -> None:
        """One place less holds each of the blobs."""
        for blob in blobs:
            key = id(blob)
            self._holders[key] -= 1
            if not self._holders[key]:
                del self._holders[key]
                self.total -= len(blob)


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """All that a slot held, and of a hybrid the recurrent states at some lengths on the way there."""

    tokens: list[int]
    state: bytes
    checkpoints: Mapping[int, bytes]


def entry_bytes(n_tokens: int, n_state: int) -> int:
    """Memory of a state of `n_state` bytes and its tokens. Its checkpoints are the slot's, and counted already."""
    return n_state + _BYTES_PER_TOKEN * n_tokens


class StateStore:
    """Entries in the order of their last use."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._entries: OrderedDict[int, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def add(self, entry: Entry) -> None:
        """Take an entry as the most recently used. It is the caller's to have made room before."""
        self._entries[id(entry)] = entry
        for blob in (entry.state, *entry.checkpoints.values()):
            self._ledger.hold(blob)
        self._ledger.total += _BYTES_PER_TOKEN * len(entry.tokens)
        while len(self._entries) > MAX_ENTRIES:
            self.evict()

    def use(self, entry: Entry) -> None:
        """The entry is of use: it is the last to go."""
        self._entries.move_to_end(id(entry))

    def remove(self, entry: Entry) -> None:
        """Forget an entry; it may have gone already."""
        if self._entries.pop(id(entry), None) is None:
            return
        self._ledger.drop((entry.state, *entry.checkpoints.values()))
        self._ledger.total -= _BYTES_PER_TOKEN * len(entry.tokens)

    def evict(self) -> bool:
        """Forget the entry that was not used for the longest time; False when there is none."""
        if not self._entries:
            return False
        self.remove(next(iter(self._entries.values())))
        return True


def common_prefix(a: list[int], b: list[int], limit: int) -> int:
    """Length of the common beginning of two lists that have at least `limit` items, of which no more are looked at."""
    for start in range(0, limit, 64):
        end = min(start + 64, limit)
        if a[start:end] != b[start:end]:
            return next(at for at in range(start, end) if a[at] != b[at])
    return limit
