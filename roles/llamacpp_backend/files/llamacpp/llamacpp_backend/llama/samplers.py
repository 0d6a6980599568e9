"""Sampling -> llama.cpp's sampler chain, and how one token is chosen.

The chain has the order of llama.cpp's own tools: penalties, DRY, top_n_sigma, top_k, typical_p, top_p, min_p, XTC,
temperature, then the draw; with mirostat penalties, DRY, temperature, mirostat. What is off is left out, so top_k comes
first as a rule and makes all after it cheap. Greedy needs none of it: penalties and DRY at most.

Forbidden tokens and biases are written into the logits and taken out again: another sampler may read the same row.

A grammar stays outside the chain: over a whole vocabulary it takes many milliseconds, on the one token that was chosen
without it microseconds. Only when it refuses that one is the choice made again among what it allows.
"""

from __future__ import annotations

import ctypes
import math
import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp as native
import numpy as np
import numpy.typing as npt

from ..engine.runner import Choice
from ..errors import BadRequest, EngineFailure
from ..parameters import Sampling
from . import log
from .calls import brief
from .model import Model

Logits = npt.NDArray[np.float32]

_SEEDS = 2**32 - 1  # the highest 32-bit number would let llama.cpp draw one
_MIROSTAT_M = 100  # candidates from which mirostat 1 estimates the distribution's slope, as llama.cpp's tools have it
_FEW = 256  # of the likeliest tokens, one that a grammar allows is nearly always among so many
_DRY_KEPT = 16
_ROWS = 64
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data


@dataclass(frozen=True)
class _Edit:
    """Biases to be added to the logits of some tokens; -inf forbids one."""

    tokens: npt.NDArray[np.int64]
    biases: Logits

    @classmethod
    def of(cls, biases: dict[int, float]) -> _Edit | None:
        """None when there is nothing to add."""
        if not biases:
            return None
        return cls(np.array(list(biases), np.int64), np.array(list(biases.values()), np.float32))


class Candidates:
    """Candidates for choices under a grammar: one array that all samplers of a context use in turn."""

    def __init__(self, n_vocab: int) -> None:
        self._ids = np.arange(n_vocab, dtype=np.int32)
        self._all: npt.NDArray[np.void] | None = None  # made when it is first needed
        self._one = np.zeros(1, _CANDIDATE)

    def every(self, logits: Logits) -> npt.NDArray[np.void]:
        """All tokens; valid until the next call."""
        if self._all is None:
            self._all = np.zeros(len(self._ids), _CANDIDATE)
        self._all["id"] = self._ids
        self._all["logit"] = logits
        return self._all

    def likeliest(self, logits: Logits) -> npt.NDArray[np.void]:
        """A few hundred tokens with the highest logits."""
        tokens = _likeliest(logits, _FEW)
        array = np.zeros(len(tokens), _CANDIDATE)
        array["id"] = tokens
        array["logit"] = logits[tokens]
        return array

    def refuses(self, grammar: Any, token: int) -> bool:
        """Whether the grammar does not go on with this token."""
        self._one["id"], self._one["logit"] = token, 0.0
        _apply(grammar, self._one, brief)
        return bool(self._one["logit"][0] == -math.inf)


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
            if len(self._made) > _DRY_KEPT:
                native.llama_sampler_free(self._made.popitem(last=False)[1])
            return native.llama_sampler_clone(made)

    def close(self) -> None:
        """Free them all."""
        with self._lock:
            while self._made:
                native.llama_sampler_free(self._made.popitem()[1])


@dataclass(frozen=True)
class Tools:
    """What the samplers of one context share."""

    candidates: Candidates
    dry: DryCache


class ChainSampler:
    """Chooses the tokens of one answer; see engine.runner.Sampler."""

    def __init__(self, model: Model, tools: Tools, sampling: Sampling, prompt: Sequence[int], n_ctx: int) -> None:
        """Build the chain. Penalties count `prompt`; `n_ctx`: their longest window. Raises BadRequest."""
        if sampling.json_schema is not None:
            raise EngineFailure("json_schema has not been made a grammar; samplers take no other constraint")
        self.seed: int | None = None
        self._candidates = tools.candidates
        self._logprobs = sampling.logprobs
        self._chain: Any = None  # None: greedy, numpy does it
        self._grammar: Any = None
        self._is_open = True
        always = _biases(model, sampling)
        endless = {**always, **dict.fromkeys(model.end_tokens, -math.inf)}
        self._edit, self._endless_edit = _Edit.of(always), _Edit.of(endless)
        try:
            if sampling.grammar is not None:
                self._grammar = _grammar(model, sampling.grammar)
            history = _history(model, tools.dry, sampling, n_ctx)
            if history or sampling.temperature > 0:
                self._chain = native.llama_sampler_chain_init(native.llama_sampler_chain_default_params())
            for sampler in history:
                self._add(sampler)
            if history:
                model.check_tokens(prompt)
                for token in prompt[-n_ctx:]:
                    brief.llama_sampler_accept(self._chain, token)
            if sampling.temperature > 0:
                self.seed = secrets.randbelow(_SEEDS) if sampling.seed is None else sampling.seed
                for sampler in _draw(model, sampling, self.seed):
                    self._add(sampler)
            elif history:
                self._add(native.llama_sampler_init_greedy())
            # With so many allowed ones among the likeliest tokens the others can't matter; 0: they always may.
            self._enough = _enough(sampling) if not history else 0
            # What sorts the whole vocabulary takes milliseconds: other threads should go on.
            self._calls = brief if sampling.top_k > 0 and not sampling.mirostat else native
        except BaseException:
            self.close()
            raise

    def choose(self, context: Any, row: int, logits: Logits, forbid_end: bool) -> Choice:
        """Choose a token and remember it. `logits`: the context's row `row` itself; it is the same again afterwards."""
        if not self._is_open:
            raise EngineFailure("the sampler is closed")
        token = self._pick_edited(context, row, logits, self._endless_edit if forbid_end else self._edit)
        if token is None and forbid_end:  # the grammar is at its end, and only an end token is left
            token = self._pick_edited(context, row, logits, self._edit)
        if token is None:
            raise BadRequest("the grammar has come to a point where no token of the model goes on")
        if self._logprobs is None:
            return Choice(token)
        return _with_logprobs(token, logits, self._logprobs)

    def close(self) -> None:
        """Free the chain and the grammar. May be called again."""
        self._is_open = False
        chain, self._chain = self._chain, None
        grammar, self._grammar = self._grammar, None
        for sampler in (chain, grammar):
            if sampler:
                native.llama_sampler_free(sampler)

    def _add(self, sampler: Any) -> None:
        """Hand a sampler over to the chain, which then owns it."""
        if not sampler:
            raise EngineFailure("llama.cpp could not make a sampler")
        native.llama_sampler_chain_add(self._chain, sampler)

    def _pick_edited(self, context: Any, row: int, logits: Logits, edit: _Edit | None) -> int | None:
        if edit is None:
            return self._pick(context, row, logits)
        kept = logits[edit.tokens]
        logits[edit.tokens] = kept + edit.biases
        try:
            return self._pick(context, row, logits)
        finally:
            logits[edit.tokens] = kept

    def _pick(self, context: Any, row: int, logits: Logits) -> int | None:
        """A token, None when a grammar leaves none."""
        best = int(logits.argmax())  # of NaNs the first
        # llama.cpp sorts, and with NaNs a sort may run out of its array.
        if not -math.inf < logits[best] < math.inf:
            raise EngineFailure(f"the best of the model's logits is {logits[best]}; allowed are finite numbers")
        if self._grammar:
            return self._pick_under_grammar(best, logits)
        if self._chain:
            return int(self._calls.llama_sampler_sample(self._chain, context, row))
        return best

    def _pick_under_grammar(self, best: int, logits: Logits) -> int | None:
        proposed = self._draw_from(self._candidates.every(logits)) if self._chain else best
        refused = self._candidates.refuses(self._grammar, proposed)
        token = self._pick_among_allowed(logits) if refused else proposed
        if token is not None:
            # Only now: what the grammar has not allowed would end the process here.
            brief.llama_sampler_accept(self._grammar, token)
            if self._chain:
                brief.llama_sampler_accept(self._chain, token)
        return token

    def _pick_among_allowed(self, logits: Logits) -> int | None:
        if self._enough:
            allowed = self._allowed(self._candidates.likeliest(logits))
            if len(allowed) >= self._enough:
                return self._draw_from(allowed)
        allowed = self._allowed(self._candidates.every(logits))
        return self._draw_from(allowed) if len(allowed) else None

    def _allowed(self, array: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        """Those of the candidates that the grammar allows."""
        _apply(self._grammar, array, native)
        return array[array["logit"] > -math.inf]

    def _draw_from(self, array: npt.NDArray[np.void]) -> int:
        if not self._chain:
            return int(array["id"][array["logit"].argmax()])
        view = _apply(self._chain, array, self._calls)
        if not 0 <= view.selected < view.size:
            raise EngineFailure(f"llama.cpp's samplers chose candidate {view.selected} of {view.size}")
        return int(view.data[view.selected].id)  # some samplers move the beginning, so not array[selected]


def _apply(sampler: Any, array: npt.NDArray[np.void], calls: Any) -> Any:
    """Let a sampler or a chain work on candidates in place; returns its view of what is left of them."""
    data = ctypes.cast(array.ctypes.data, native.llama_token_data_p)
    view = native.llama_token_data_array(data=data, size=len(array), selected=-1, sorted=False)
    calls.llama_sampler_apply(sampler, ctypes.byref(view))
    return view


def _enough(sampling: Sampling) -> int:
    """How many allowed candidates settle a choice: of greedy the best, of a chain that begins with top_k those."""
    if sampling.temperature == 0:
        return 1
    return max(0, sampling.top_k) if sampling.top_n_sigma <= 0 and not sampling.mirostat else 0


def _biases(model: Model, sampling: Sampling) -> dict[int, float]:
    """Biases by token. A token that is named twice gets both."""
    biases: dict[int, float] = {}
    for token, bias in sampling.logit_bias:
        biases[token] = biases.get(token, 0.0) + bias
    model.check_tokens(list(biases))  # numpy would take -1 for the last token
    forbidden = set(model.suppressed_tokens)
    if sampling.grammar is not None:
        # A grammar reads a control token as its name, but the answer's text has nothing for it.
        forbidden |= model.control_tokens - model.end_tokens
    return {**biases, **dict.fromkeys(forbidden, -math.inf)}


def _grammar(model: Model, text: str) -> Any:
    """A grammar's sampler; its text is what `constrain` has written. Raises BadRequest."""
    if not text or "\0" in text:  # llama.cpp would take it for no grammar at all
        raise BadRequest(f"the grammar can't be read: it is {text[:40]!r}; allowed is GBNF text")
    grammar = native.llama_sampler_init_grammar(model.vocab, text.encode(), b"root")
    if not grammar:
        raise BadRequest(f"the grammar can't be read: {log.last_errors()}")
    return grammar


def _history(model: Model, dry: DryCache, sampling: Sampling, n_ctx: int) -> list[Any]:
    """Samplers that look at the tokens so far."""
    samplers = []
    penalties = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
    window = _window(sampling.penalty_last_n, n_ctx)
    if window and penalties != (1.0, 0.0, 0.0):
        samplers.append(native.llama_sampler_init_penalties(model.n_vocab, window, *penalties))
    window = dry_window(sampling, n_ctx)
    if window:
        samplers.append(dry.sampler(sampling, window))
    return samplers


def dry_window(sampling: Sampling, n_ctx: int) -> int:
    """Tokens that DRY looks back at; 0: DRY is off."""
    return _window(sampling.dry_penalty_last_n, n_ctx) if sampling.dry_multiplier > 0 else 0


def _window(last_n: int, n_ctx: int) -> int:
    """Tokens to look back at: llama.cpp allocates the window, and the context's length is all that can be needed."""
    return n_ctx if last_n < 0 else min(last_n, n_ctx)


def _draw(model: Model, sampling: Sampling, seed: int) -> list[Any]:
    """Samplers that narrow the choice, the one that makes it last."""
    if sampling.mirostat:
        tau, eta = sampling.mirostat_tau, sampling.mirostat_eta
        version_1 = sampling.mirostat == 1
        return [
            native.llama_sampler_init_temp(sampling.temperature),
            native.llama_sampler_init_mirostat(model.n_vocab, seed, tau, eta, _MIROSTAT_M)
            if version_1
            else native.llama_sampler_init_mirostat_v2(seed, tau, eta),
        ]
    samplers = []
    if sampling.top_n_sigma > 0:
        samplers.append(native.llama_sampler_init_top_n_sigma(sampling.top_n_sigma))
    if sampling.top_k > 0:
        samplers.append(native.llama_sampler_init_top_k(sampling.top_k))
    if sampling.typical_p < 1:
        samplers.append(native.llama_sampler_init_typical(sampling.typical_p, 1))
    if sampling.top_p < 1:
        samplers.append(native.llama_sampler_init_top_p(sampling.top_p, 1))
    if sampling.min_p > 0:
        samplers.append(native.llama_sampler_init_min_p(sampling.min_p, 1))
    if sampling.xtc_probability > 0:
        samplers.append(native.llama_sampler_init_xtc(sampling.xtc_probability, sampling.xtc_threshold, 1, seed))
    samplers.append(native.llama_sampler_init_temp(sampling.temperature))
    samplers.append(native.llama_sampler_init_dist(seed))
    return samplers


def _with_logprobs(token: int, logits: Logits, count: int) -> Choice:
    """The choice with log probabilities of the model itself, before any sampling parameter."""
    best = logits.max()
    total = float(best) + math.log(float(np.exp(logits - best).sum(dtype=np.float64)))
    top: list[tuple[int, float]] = []
    if count:
        likeliest = _likeliest(logits, count)
        ordered = likeliest[np.argsort(-logits[likeliest], kind="stable")]
        top = [(int(item), float(logits[item]) - total) for item in ordered]
    return Choice(token, float(logits[token]) - total, tuple(top))


def _likeliest(logits: Logits, count: int) -> npt.NDArray[np.intp]:
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
