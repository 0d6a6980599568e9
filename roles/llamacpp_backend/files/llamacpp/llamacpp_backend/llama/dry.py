"""DRY samplers, made once and cloned."""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from typing import Any

import llama_cpp as native

from ..errors import EngineFailure
from ..parameters import Sampling
from .model import Model

_KEPT = 16


class DryCache:
    """DRY samplers to be cloned: for each breaker a new one goes through the whole vocabulary, which takes long."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._made: OrderedDict[tuple[tuple[float, ...], tuple[str, ...]], Any] = OrderedDict()

    def sampler(self, sampling: Sampling, window: int) -> Any:
        """A fresh sampler, owned by the caller. May be called from any thread."""
        numbers = (sampling.dry_multiplier, sampling.dry_base, sampling.dry_allowed_length, window)
        breakers = sampling.dry_sequence_breakers
        with self._lock:
            made = self._made.get((numbers, breakers))
            if made:
                self._made.move_to_end((numbers, breakers))
                return native.llama_sampler_clone(made)
        # Not under the lock: the engine's thread must not wait for what another one prepares.
        texts = (ctypes.c_char_p * len(breakers))(*(text.encode() for text in breakers))
        made = native.llama_sampler_init_dry(self._model.vocab, *numbers, texts, len(breakers))
        if not made:
            raise EngineFailure("llama.cpp could not make a DRY sampler")
        with self._lock:
            native.llama_sampler_free(self._made.pop((numbers, breakers), None))
            self._made[numbers, breakers] = made
            if len(self._made) > _KEPT:
                native.llama_sampler_free(self._made.popitem(last=False)[1])
            return native.llama_sampler_clone(made)

    def close(self) -> None:
        """Free them all."""
        with self._lock:
            while self._made:
                native.llama_sampler_free(self._made.popitem()[1])
