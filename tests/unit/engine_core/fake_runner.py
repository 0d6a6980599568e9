"""A runner that checks every call, and a model whose next token depends on each token before it.

What a slot holds is kept twice, as llama.cpp does it for hybrids: the attention's tokens and those that the recurrent
state has seen. Any mix-up of slots, positions or states gives another next token, and most are refused at once.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from llamacpp_backend.engine.runner import Choice, Chunk, NoRoom, Sampler, StepFailed
from llamacpp_backend.errors import BadRequest, EngineFailure
from llamacpp_backend.parameters import Sampling

N_VOCAB = 40
END = 0
_BYTES = {1: b"\xc3", 2: b"\xa9", 3: b"", 4: b"\xe2\x82", 5: b"\xac"}


class Violation(AssertionError):
    """The engine broke the runner's contract."""


def token_bytes(token: int) -> bytes:
    """Letters, parts of characters, and one control token."""
    return b"" if token == END else _BYTES.get(token, bytes([ord("a") + token % 26]))


def next_token(history: Sequence[int], seed: int | None, forbid_end: bool, n_end: int = 1) -> int:
    """The model: any change anywhere in the history changes it. `n_end`: how many of the tokens stand for the end."""
    value = zlib.crc32(array("i", history).tobytes(), seed or 0)
    token = (value >> 7) % (N_VOCAB + n_end - 1)
    token = token if token < N_VOCAB else END
    return 6 + value % (N_VOCAB - 6) if forbid_end and token == END else token


@dataclass
class FakeSampler:
    """Knows what its answer has had so far."""

    seed: int | None
    history: list[int]
    logprobs: int | None
    closed: int = 0

    def close(self) -> None:
        self.closed += 1


@dataclass
class Faults:
    """What is to go wrong: numbers of calls, from 0."""

    no_room: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    restore: set[int] = field(default_factory=set)
    copy: set[int] = field(default_factory=set)
    sample: set[int] = field(default_factory=set)
    save: set[int] = field(default_factory=set)  # of states, and of checkpoints

    @property
    def can_fail_jobs(self) -> bool:
        """Whether an answer may end with an error because of them."""
        return bool(self.no_room or self.failed or self.sample)


@dataclass
class _Slot:
    attention: list[int] = field(default_factory=list)
    recurrent: list[int] = field(default_factory=list)
    is_defined: bool = True


class FakeRunner:
    """See engine.runner.Runner. `violations`: broken rules, also where the engine swallowed the exception."""

    def __init__(
        self,
        n_slots: int = 2,
        n_ctx: int = 64,
        n_batch: int = 16,
        *,
        n_cells: int = 0,
        can_rewind: bool = True,
        faults: Faults | None = None,
        state_bytes: int = 100,
    ) -> None:
        self.n_slots = n_slots
        self.n_ctx = n_ctx
        self.n_batch = n_batch
        self.n_cells = n_cells or n_slots * n_ctx
        self.can_rewind = can_rewind
        self.faults = Faults() if faults is None else faults
        self.violations: list[str] = []
        self.steps: list[list[Chunk]] = []  # those that worked
        self.samplers: list[FakeSampler] = []
        self.on_decode: Callable[[Sequence[Chunk]], None] = lambda _chunks: None
        self.calls: dict[str, int] = {}
        self.n_end = 1
        self._state_bytes = state_bytes
        self._slots = [_Slot() for _ in range(n_slots)]
        self._rows: dict[int, list[int]] = {}
        self._saved: set[bytes] = set()

    # -- the protocol ----------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        self._check(not self.calls, "a warm-up after other calls")
        self._count("warm_up")

    def decode(self, chunks: Sequence[Chunk]) -> None:
        number = self._count("decode")
        self._check(bool(chunks), "an empty step")
        last = -1
        for chunk in chunks:
            self._check(last < chunk.slot < self.n_slots, f"slot {chunk.slot} after {last}")
            last = chunk.slot
            held = self._defined(chunk.slot)
            self._check(len(chunk.tokens) > 0, "an empty chunk")
            self._check(chunk.position == len(held.attention), f"position {chunk.position} of {len(held.attention)}")
            self._check(chunk.position + len(chunk.tokens) <= self.n_ctx, "more than n_ctx in a slot")
            self._check(all(0 <= token < N_VOCAB for token in chunk.tokens), "no such token")
        total = sum(len(chunk.tokens) for chunk in chunks)
        self._check(total <= self.n_batch, f"{total} tokens in a step of {self.n_batch}")
        self._check(self.n_held + total <= self.n_cells, f"{self.n_held} + {total} in {self.n_cells} cells")
        self.on_decode(chunks)
        if number in self.faults.no_room:
            raise NoRoom("planted")
        self._rows = {}
        if number in self.faults.failed:
            for chunk in chunks:
                self._slots[chunk.slot].is_defined = False
            raise StepFailed("planted")
        for chunk in chunks:
            slot = self._slots[chunk.slot]
            slot.attention += chunk.tokens
            slot.recurrent += chunk.tokens
            self._check(slot.attention == slot.recurrent, "attention and recurrent state differ")
            if chunk.wants_logits:
                self._rows[chunk.slot] = list(slot.attention)
        self.steps.append(list(chunks))

    def sampler(self, sampling: Sampling, prompt: Sequence[int]) -> FakeSampler:
        if sampling.grammar == "bad":
            raise BadRequest("the grammar is bad")
        sampler = FakeSampler(sampling.seed, list(prompt), sampling.logprobs)
        self.samplers.append(sampler)
        return sampler

    def sample(self, slot: int, sampler: Sampler, forbid_end: bool) -> Choice:
        self._check(isinstance(sampler, FakeSampler) and not sampler.closed, "a closed sampler")
        assert isinstance(sampler, FakeSampler)
        self._check(slot in self._rows, f"slot {slot} has no logits")
        history = self._rows[slot]
        self._check(history == sampler.history, "the slot holds something else than the sampler's answer")
        if self._count("sample") in self.faults.sample:
            raise EngineFailure("planted")
        token = next_token(history, sampler.seed, forbid_end, self.n_end)
        sampler.history.append(token)
        if sampler.logprobs is None:
            return Choice(token)
        return Choice(token, -0.5, tuple((6 + rank, -1.0 - rank) for rank in range(sampler.logprobs)))

    def clear(self, slot: int) -> None:
        self._count("clear")
        self._slots[slot] = _Slot()
        self._rows.pop(slot, None)

    def rewind(self, slot: int, length: int) -> None:
        held = self._defined(slot)
        self._check(self.can_rewind, "a hybrid can't be rewound")
        self._check(0 <= length <= len(held.attention), f"rewind to {length} of {len(held.attention)}")
        del held.attention[length:], held.recurrent[length:]

    def copy(self, source: int, target: int) -> None:
        held = self._defined(source)
        self._check(source != target, "a copy onto itself")
        if self._count("copy") in self.faults.copy:
            self._slots[target].is_defined = False
            raise EngineFailure("planted")
        self._slots[target] = _Slot(list(held.attention), list(held.recurrent))
        self._check_cells()

    def state_bytes(self, slot: int) -> int:
        self._count("state_bytes")
        return 5 + 4 * len(self._defined(slot).attention) + self._state_bytes

    def save(self, slot: int) -> bytes:
        held = self._defined(slot)
        if self._count("save") in self.faults.save:
            raise EngineFailure("planted")
        return self._blob(b"S", held.attention)

    def restore(self, slot: int, state: bytes, length: int) -> bool:
        self._slots[slot] = _Slot()
        tokens = self._read(b"S", state)
        self._check(len(tokens) == length, f"a state of {len(tokens)} tokens restored as {length}")
        if self._count("restore") in self.faults.restore:
            return False
        self._slots[slot] = _Slot(list(tokens), list(tokens))
        self._check_cells()
        return True

    def save_checkpoint(self, slot: int) -> bytes:
        self._check(not self.can_rewind, "a checkpoint of a dense model")
        if self._count("checkpoint") in self.faults.save:
            raise MemoryError("planted")
        return self._blob(b"C", self._defined(slot).recurrent)

    def rollback(self, slot: int, checkpoint: bytes, length: int) -> bool:
        held = self._defined(slot)
        self._check(not self.can_rewind, "a rollback of a dense model")
        tokens = self._read(b"C", checkpoint)
        self._check(len(tokens) == length <= len(held.attention), "a checkpoint of another length")
        self._check(held.attention[:length] == tokens, "a checkpoint of another sequence")
        if self._count("rollback") in self.faults.restore:
            self._slots[slot] = _Slot()
            return False
        self._slots[slot] = _Slot(held.attention[:length], tokens)
        return True

    def token_bytes(self, token: int) -> bytes:
        return token_bytes(token)

    def is_end(self, token: int) -> bool:
        return token == END

    # -- for tests -------------------------------------------------------------------------------------------------

    @property
    def n_held(self) -> int:
        """Cells in use."""
        return sum(len(slot.attention) for slot in self._slots)

    def holds(self, slot: int) -> list[int]:
        """What a slot holds."""
        return list(self._slots[slot].attention)

    def _count(self, name: str) -> int:
        number = self.calls.get(name, 0)
        self.calls[name] = number + 1
        return number

    def _check(self, holds: bool, rule: str) -> None:
        if not holds:
            self.violations.append(rule)
            raise Violation(rule)

    def _check_cells(self) -> None:
        self._check(self.n_held <= self.n_cells, f"{self.n_held} tokens in {self.n_cells} cells")

    def _defined(self, slot: int) -> _Slot:
        self._check(0 <= slot < self.n_slots, f"no slot {slot}")
        self._check(self._slots[slot].is_defined, f"slot {slot} was not cleared after a failed step")
        return self._slots[slot]

    def _blob(self, kind: bytes, tokens: Sequence[int]) -> bytes:
        head = kind + struct.pack(f"<i{len(tokens)}i", len(tokens), *tokens)
        blob = head + bytes(self._state_bytes)
        self._saved.add(blob)
        return blob

    def _read(self, kind: bytes, blob: bytes) -> list[int]:
        self._check(blob in self._saved and blob[:1] == kind, "a state that was never saved")
        count = struct.unpack_from("<i", blob, 1)[0]
        return list(struct.unpack_from(f"<{count}i", blob, 5))
