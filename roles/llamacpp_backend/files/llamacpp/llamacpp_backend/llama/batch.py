"""A step's chunks -> llama.cpp's batch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from struct import Struct
from typing import Any

import llama_cpp as native

from ..engine.runner import Chunk


class Batch:
    """The arrays of a llama_batch, written anew for each step; rows in the order of the chunks."""

    def __init__(self, n_batch: int, n_slots: int) -> None:
        self._tokens = (ctypes.c_int32 * n_batch)()
        self._positions = (ctypes.c_int32 * n_batch)()
        self._wanted = (ctypes.c_int8 * n_batch)()
        self._counts = (ctypes.c_int32 * n_batch)(*[1] * n_batch)
        self._slots = (ctypes.c_int32 * n_slots)(*range(n_slots))
        # llama.cpp wants a pointer to each row's sequence ids: all rows of a slot share one.
        first = ctypes.addressof(self._slots)
        self._addresses = [first + 4 * slot for slot in range(n_slots)]
        self._pointers = (ctypes.c_size_t * n_batch)()
        self._single: list[int] = []  # slots of the last step in which each gave one token and wanted logits
        self._native = native.llama_batch(
            n_tokens=0,
            token=self._tokens,
            pos=self._positions,
            n_seq_id=self._counts,
            seq_id=ctypes.cast(self._pointers, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
            logits=self._wanted,
        )

    def fill(self, chunks: Sequence[Chunk]) -> Any:
        """The llama_batch of these chunks, valid until the next call."""
        tokens: list[int] = []
        positions: list[int] = []
        for chunk in chunks:
            tokens += chunk.tokens
            start = chunk.position
            positions += range(start, start + len(chunk.tokens))
        count = len(tokens)
        numbers = _numbers(count)
        numbers.pack_into(self._tokens, 0, *tokens)
        numbers.pack_into(self._positions, 0, *positions)
        self._native.n_tokens = count
        slots = [chunk.slot for chunk in chunks if chunk.wants_logits]
        if count == len(slots) and slots == self._single:
            return self._native  # the usual step: the same slots go on, each by a token
        self._single = slots if count == len(slots) else []
        pointers: list[Any] = []
        wanted = bytearray(count)
        for chunk in chunks:
            pointers += [self._addresses[chunk.slot]] * len(chunk.tokens)
            wanted[len(pointers) - 1] = chunk.wants_logits
        ctypes.memmove(self._wanted, bytes(wanted), count)
        self._pointers[:count] = pointers
        return self._native


_structs: dict[int, Struct] = {}


def _numbers(count: int) -> Struct:
    """Packs so many 32-bit numbers."""
    packer = _structs.get(count)
    if packer is None:
        packer = _structs[count] = Struct(f"={count}i")
    return packer
