"""One llama.cpp context with n_slots sequences: implements engine.runner.Runner.

A wrong argument makes llama.cpp end the process or go on with wrong states, so every native call stands behind a
check. What each slot holds is known here (`_held`), as llama.cpp accepts gaps and overlaps on some models.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp as native
import numpy as np
import numpy.typing as npt

from ..engine.runner import Choice, Chunk, NoRoom, Sampler, StepFailed
from ..errors import EngineFailure, LoadError
from ..parameters import Sampling
from . import log
from .batch import Batch
from .calls import brief
from .candidates import Candidates
from .chain import dry_window
from .dry import DryCache
from .gguf import CACHE_TYPES
from .model import Model
from .samplers import ChainSampler, Tools

MAX_SLOTS = 256
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}

_UNDEFINED = -1
_DONE, _NO_ROOM = 0, 1
_ALL, _RECURRENT = 0, 1  # flags of a sequence's state: all of it, or the recurrent part alone

_new_bytes: Any = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.argtypes, _new_bytes.restype = [ctypes.c_char_p, ctypes.c_ssize_t], ctypes.py_object


@dataclass(frozen=True)
class ContextOptions:
    """How to make a context. Lengths in tokens. `n_ctx`: of one slot.

    `n_cells`: only with `kv_unified`, the pool that all slots share; 0: room for all of them.
    `cache_type_k`, `cache_type_v`: a name in file.CACHE_TYPES. `flash_attention`: a name in FLASH_ATTENTION.
    """

    n_ctx: int
    n_slots: int = 1
    n_batch: int = 512
    n_ubatch: int = 512
    n_threads: int = 1
    kv_unified: bool = False
    n_cells: int = 0
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attention: str = "auto"


class LlamaRunner:
    """Owns the context; one thread at a time. Close it before its model."""

    def __init__(self, model: Model, options: ContextOptions) -> None:
        """Make the context. Raises LoadError."""
        _check(options)
        if not model.handle:
            raise LoadError("the model is closed; a context needs an open one")
        self._model = model
        self.n_slots = options.n_slots
        self.n_ctx = options.n_ctx
        self.n_cells = (options.kv_unified and options.n_cells) or options.n_ctx * options.n_slots
        self.can_rewind = model.can_rewind
        self._unified = options.kv_unified
        params = native.llama_context_default_params()
        params.n_ctx = self.n_cells
        # llama.cpp cuts it to n_ctx by itself, and each slot must get at least a row.
        params.n_batch = max(options.n_slots, min(options.n_batch, self.n_cells))
        params.n_ubatch = min(options.n_ubatch, params.n_batch)
        params.n_seq_max = params.n_outputs_max = options.n_slots  # 0 outputs would reserve logits of a whole batch
        params.n_threads = params.n_threads_batch = options.n_threads
        params.kv_unified = options.kv_unified
        params.type_k = CACHE_TYPES[options.cache_type_k].number
        params.type_v = CACHE_TYPES[options.cache_type_v].number
        params.flash_attn_type = FLASH_ATTENTION[options.flash_attention]
        self._context: Any = native.llama_init_from_model(model.handle, params)
        if not self._context:
            raise LoadError(f"llama.cpp can't make a context with {options}: {log.last_errors()}")
        model.attach(self)
        self._memory: Any = native.llama_get_memory(self._context)
        self.n_batch: int = native.llama_n_batch(self._context)
        self._batch = Batch(self.n_batch, self.n_slots)
        self._tools = Tools(Candidates(model.n_vocab), DryCache(model))
        self._held = [0] * self.n_slots
        self._rows: dict[int, int] = {}  # slot -> its row in the last step's logits
        self._views: dict[int, npt.NDArray[np.float32]] = {}  # address of a row of logits -> the row

    def decode(self, chunks: Sequence[Chunk]) -> None:
        """One step: at most one chunk per slot, slots ascending.

        Raises NoRoom when nothing has changed, StepFailed when what the slots hold is lost, and EngineFailure for a
        step that was refused before it began.
        """
        held = self._held
        self._check_chunks(chunks)
        batch = self._batch.fill(chunks)
        self._rows = {}
        code = native.llama_decode(self._context, batch)
        if code == _DONE:
            row = -1
            for chunk in chunks:
                count = len(chunk.tokens)
                row += count
                held[chunk.slot] += count
                if chunk.wants_logits:
                    self._rows[chunk.slot] = row
            return
        if code == _NO_ROOM:
            raise NoRoom(f"the KV cache has no room for a step of {batch.n_tokens} tokens")
        for chunk in chunks:
            held[chunk.slot] = _UNDEFINED
        raise StepFailed(f"llama.cpp could not decode {batch.n_tokens} tokens (code {code}): {log.last_errors()}")

    def prepare(self, sampling: Sampling) -> None:
        """Make ahead what would hold up the engine's thread in `sampler`. May be called from any thread."""
        self._check_open()
        window = dry_window(sampling, self.n_ctx)
        if window:
            native.llama_sampler_free(self._tools.dry.sampler(sampling, window))

    def sampler(self, sampling: Sampling, prompt: Sequence[int]) -> ChainSampler:
        """A fresh sampler for one answer; penalties count the prompt's tokens. Raises BadRequest."""
        self._check_open()
        return ChainSampler(self._model, self._tools, sampling, prompt, self.n_ctx)

    def sample(self, slot: int, sampler: Sampler, forbid_end: bool) -> Choice:
        """Choose a token from the slot's logits of the last step and tell the sampler."""
        row = self._rows.get(slot)
        if row is None:
            raise EngineFailure(f"slot {slot} has nothing to sample from: no logits came out of its last step")
        if not isinstance(sampler, ChainSampler):
            raise EngineFailure(f"a sampler of {type(sampler).__name__} does not fit this runner")
        address = brief.llama_get_logits_ith(self._context, row)
        logits = self._views.get(address)
        if logits is None:
            logits = self._view(address)
        return sampler.choose(self._context, row, logits, forbid_end)

    def clear(self, slot: int) -> None:
        """Empty a slot."""
        self._check_slot(slot)
        native.llama_memory_seq_rm(self._memory, slot, -1, -1)
        self._held[slot] = 0
        self._rows.pop(slot, None)

    def rewind(self, slot: int, length: int) -> None:
        """Cut a slot back to its first `length` tokens; only where `can_rewind`. Raises EngineFailure."""
        held = self._defined(slot)
        if not self.can_rewind or not 0 <= length <= held:
            raise EngineFailure(
                f"slot {slot} can't be cut from {held} to {length} tokens (hybrid: {not self.can_rewind})"
            )
        if length == 0:
            self.clear(slot)
        elif length < held:
            self._rows.pop(slot, None)
            self._cut(slot, length)

    def copy(self, source: int, target: int) -> None:
        """Make `target` hold what `source` holds; `source` may go on at once."""
        held = self._defined(source)
        if source == target:
            raise EngineFailure(f"slot {source} can't be copied onto itself")
        self.clear(target)
        if held == 0:
            return
        if self._unified:  # cells are shared, nothing moves; the target was cleared, or both would be merged
            native.llama_memory_seq_cp(self._memory, source, target, -1, -1)
            self._held[target] = held
        # llama.cpp copies between separate caches only at the next step, and all of the cache, used or not: what is
        # saved or restored before that would be wrong.
        elif not self.restore(target, self.save(source), held):
            raise EngineFailure(f"llama.cpp could not copy the {held} tokens of slot {source} to slot {target}")

    def state_bytes(self, slot: int) -> int:
        """Size of what `save` would return."""
        self._defined(slot)
        return int(native.llama_state_seq_get_size_ext(self._context, slot, _ALL))

    def save(self, slot: int) -> bytes:
        """All that the slot holds, to be restored into any slot of a context with the same options and weights."""
        self._defined(slot)
        return self._get(slot, _ALL)

    def restore(self, slot: int, state: bytes, length: int) -> bool:
        """Make the slot hold a saved state of `length` tokens; False, and an empty slot, when it does not fit."""
        self.clear(slot)
        if not 0 < length <= self.n_ctx or not self._set(slot, state, _ALL):
            self.clear(slot)
            return False
        return self._settle(slot, length)

    def save_checkpoint(self, slot: int) -> bytes:
        """What a hybrid needs to come back to the slot's present length later; b"" where can_rewind."""
        self._defined(slot)
        return b"" if self.can_rewind else self._get(slot, _RECURRENT)

    def rollback(self, slot: int, checkpoint: bytes, length: int) -> bool:
        """Bring a hybrid back to `length` tokens by its checkpoint; False, and an empty slot, if refused."""
        held = self._defined(slot)
        if self.can_rewind or not 0 < length <= held:
            raise EngineFailure(f"slot {slot} can't be brought from {held} back to {length} tokens by a checkpoint")
        self._rows.pop(slot, None)
        if not self._set(slot, checkpoint, _RECURRENT):
            self.clear(slot)
            return False
        # Only now, as the recurrent part stands at `length` already, is cutting the attention part right.
        if not native.llama_memory_seq_rm(self._memory, slot, length, -1):
            self.clear(slot)
            return False
        return self._settle(slot, length)

    def token_bytes(self, token: int) -> bytes:
        """See Model.token_bytes."""
        return self._model.token_bytes(token)

    def is_end(self, token: int) -> bool:
        """Whether the token ends a generation: end of text, of a turn, of a message."""
        return token in self._model.end_tokens

    def warm_up(self) -> None:
        """One step with all slots, so that no request pays for page faults and for growing buffers."""
        self.decode([Chunk(slot, (0,), 0, True) for slot in range(self.n_slots)])
        native.llama_synchronize(self._context)
        for slot in range(self.n_slots):
            self.clear(slot)

    def close(self) -> None:
        """Free the context. May be called again."""
        if self._context:
            self._tools.dry.close()
            native.llama_free(self._context)
            self._context = None
            self._rows, self._views = {}, {}
            self._model.detach(self)

    def _check_open(self) -> None:
        if not self._context:
            raise EngineFailure("the model's context is closed")

    def _check_slot(self, slot: int) -> None:
        self._check_open()
        if not 0 <= slot < self.n_slots:
            raise EngineFailure(f"there is no slot {slot}; allowed are 0 to {self.n_slots - 1}")

    def _defined(self, slot: int) -> int:
        """Tokens that the slot holds. Raises EngineFailure when that is not known."""
        self._check_slot(slot)
        held = self._held[slot]
        if held < 0:
            raise EngineFailure(f"slot {slot} took part in a failed step; it must be cleared or restored first")
        return held

    def _check_chunks(self, chunks: Sequence[Chunk]) -> None:
        self._check_open()
        held, last, total, n_ctx = self._held, -1, 0, self.n_ctx
        for chunk in chunks:
            slot, count = chunk.slot, len(chunk.tokens)
            if not last < slot < self.n_slots:
                raise EngineFailure(
                    f"slot {slot} follows slot {last}; allowed are ascending slots below {self.n_slots}"
                )
            if count == 0:
                raise EngineFailure(f"the chunk of slot {slot} has no tokens; it must have at least one")
            end = chunk.position + count
            if chunk.position != held[slot] or end > n_ctx:
                raise EngineFailure(
                    f"tokens {chunk.position} to {end} do not follow the {held[slot]} of slot {slot} in {n_ctx}"
                )
            last = slot
            total += count
            self._model.check_tokens(chunk.tokens)
        if not 0 < total <= self.n_batch:
            raise EngineFailure(f"a step has {total} tokens; allowed are 1 to {self.n_batch}")

    def _cut(self, slot: int, length: int) -> None:
        if not native.llama_memory_seq_rm(self._memory, slot, length, -1):
            self._held[slot] = _UNDEFINED
            raise EngineFailure(f"llama.cpp could not cut slot {slot} to {length} tokens")
        self._held[slot] = length

    def _settle(self, slot: int, length: int) -> bool:
        """Take what a state has brought, if it is as long as was said."""
        if brief.llama_memory_seq_pos_max(self._memory, slot) != length - 1:
            self.clear(slot)
            return False
        self._held[slot] = length
        return True

    def _get(self, slot: int, flags: int) -> bytes:
        size = native.llama_state_seq_get_size_ext(self._context, slot, flags)
        # Filled in place: a buffer that is copied to bytes afterwards takes twice the memory and the time.
        state: bytes = _new_bytes(None, size)
        written = native.llama_state_seq_get_data_ext(self._context, _address(state), size, slot, flags)
        if written != size:
            raise EngineFailure(f"llama.cpp saved {written} of {size} bytes of slot {slot}")
        return state

    def _set(self, slot: int, state: bytes, flags: int) -> bool:
        if not state:
            return False
        return bool(native.llama_state_seq_set_data_ext(self._context, _address(state), len(state), slot, flags))

    def _view(self, address: int | None) -> npt.NDArray[np.float32]:
        if not address:
            raise EngineFailure(f"llama.cpp gave no logits: {log.last_errors()}")
        row = (ctypes.c_float * self._model.n_vocab).from_address(address)
        view = self._views[address] = np.ctypeslib.as_array(row)
        return view


def _address(state: bytes) -> Any:
    return ctypes.cast(ctypes.c_char_p(state), ctypes.POINTER(ctypes.c_uint8))


def _check(options: ContextOptions) -> None:
    """Refuse options that would end the process or give a context of another kind. Raises LoadError."""
    for name in ("n_ctx", "n_slots", "n_batch", "n_ubatch", "n_threads"):
        value = getattr(options, name)
        high = MAX_SLOTS if name == "n_slots" else 2**31 - 1
        if not 1 <= value <= high:
            raise LoadError(f"{name} is {value}; allowed is an integer from 1 to {high}")
    if options.n_ctx * options.n_slots >= 2**31:
        raise LoadError(
            f"n_ctx {options.n_ctx} in {options.n_slots} slots is too much; allowed are {2**31 - 1} in total"
        )
    if options.kv_unified and options.n_cells and not options.n_ctx <= options.n_cells < 2**31:
        raise LoadError(f"n_cells is {options.n_cells}; allowed is n_ctx ({options.n_ctx}) or more")
    for name in ("cache_type_k", "cache_type_v"):
        if getattr(options, name) not in CACHE_TYPES:
            raise LoadError(f"{name} is {getattr(options, name)!r}; allowed are {', '.join(CACHE_TYPES)}")
    if options.flash_attention not in FLASH_ATTENTION:
        raise LoadError(f"flash_attention is {options.flash_attention!r}; allowed are {', '.join(FLASH_ATTENTION)}")
    if options.flash_attention == "off" and CACHE_TYPES[options.cache_type_v].is_quantized:
        raise LoadError(f"cache_type_v {options.cache_type_v} needs flash_attention; it is off")
