"""Tokens that may be chosen, as arrays that numpy and llama.cpp's samplers work on alike."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import llama_cpp as native
import numpy as np
import numpy.typing as npt

from .calls import brief

Logits = npt.NDArray[np.float32]
Array = npt.NDArray[np.void]

_FEW = 256  # of the likeliest tokens, one that a grammar allows is nearly always among so many
_ROWS = 64
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data


class Candidates:
    """Candidates for choices under a grammar: one array that all samplers of a context use in turn."""

    def __init__(self, n_vocab: int) -> None:
        self._ids = np.arange(n_vocab, dtype=np.int32)
        self._all: Array | None = None  # made when it is first needed
        self._one = np.zeros(1, _CANDIDATE)

    def every(self, logits: Logits) -> Array:
        """All tokens; valid until the next call."""
        if self._all is None:
            self._all = np.zeros(len(self._ids), _CANDIDATE)
        self._all["id"] = self._ids
        self._all["logit"] = logits
        return self._all

    def likeliest(self, logits: Logits) -> Array:
        """A few hundred tokens with the highest logits."""
        tokens = likeliest(logits, _FEW)
        array = np.zeros(len(tokens), _CANDIDATE)
        array["id"] = tokens
        array["logit"] = logits[tokens]
        return array

    def refuses(self, grammar: Any, token: int) -> bool:
        """Whether the grammar does not go on with this token."""
        self._one["id"], self._one["logit"] = token, 0.0
        apply(grammar, self._one, brief)
        return bool(self._one["logit"][0] == -math.inf)


def apply(sampler: Any, array: Array, calls: Any) -> Any:
    """Let a sampler or a chain work on candidates in place; returns its view of what is left of them."""
    data = ctypes.cast(array.ctypes.data, native.llama_token_data_p)
    view = native.llama_token_data_array(data=data, size=len(array), selected=-1, sorted=False)
    calls.llama_sampler_apply(sampler, ctypes.byref(view))
    return view


def likeliest(logits: Logits, count: int) -> npt.NDArray[np.intp]:
    """The `count` tokens with the highest logits, in no order; all tokens when there are not more."""
    # A partition of a large vocabulary takes as long as a small model's step. The highest are in the columns with the
    # highest maxima, and maxima are quick.
    columns = len(logits) // _ROWS
    if columns <= 2 * count:
        return _highest(logits, count)
    table = logits[: columns * _ROWS].reshape(_ROWS, columns)
    best = _highest(table.max(axis=0), count)
    tokens = np.concatenate(
        [(best + columns * np.arange(_ROWS)[:, None]).ravel(), np.arange(columns * _ROWS, len(logits))]
    )
    return tokens[_highest(logits[tokens], count)]


def _highest(values: Logits, count: int) -> npt.NDArray[np.intp]:
    return np.argpartition(values, -count)[-count:] if count < len(values) else np.arange(len(values))
