"""llama.cpp's short calls, made without giving up Python's lock.

ctypes releases the lock around each native call, and taking it back may wait for a whole switch interval (5 ms) of a
busy thread. A step makes dozens of calls of a microsecond: `brief` makes them with the lock held. What takes longer
(a decode, a load, tokenizing, states) is called through `llama_cpp` itself, so that other threads go on meanwhile.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp as native

_NAMES = (
    "llama_get_logits_ith",
    "llama_memory_seq_pos_max",
    "llama_sampler_accept",
    "llama_sampler_apply",
    "llama_sampler_sample",
    "llama_token_to_piece",
    "llama_vocab_get_text",
    "llama_vocab_is_control",
    "llama_vocab_is_eog",
)


def _library() -> Any:
    library = ctypes.PyDLL(native.llama_cpp._lib._name)
    for name in _NAMES:
        function, known = getattr(library, name), getattr(native, name)
        function.argtypes, function.restype = known.argtypes, known.restype
    # An address, not a pointer object: numpy wants one, and it is compared at each step.
    library.llama_get_logits_ith.restype = ctypes.c_void_p
    return library


brief: Any = _library()
