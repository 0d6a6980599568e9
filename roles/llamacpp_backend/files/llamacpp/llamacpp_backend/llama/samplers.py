"""How one token is chosen: by numpy, by llama.cpp's chain, under a grammar.

Forbidden tokens and biases are written into the logits and taken out again: another sampler may read the same row.

A grammar stays outside the chain: over a whole vocabulary it takes many milliseconds, on the one token that was chosen
without it microseconds. Only when it refuses that one is the choice made again among what it allows.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp as native
import numpy as np
import numpy.typing as npt

from ..engine.runner import Choice
from ..errors import BadRequest, EngineFailure
from ..parameters import N_SEEDS, Sampling
from . import log
from .calls import brief
from .candidates import Array, Candidates, Logits, apply, likeliest
from .chain import draw, history
from .dry import DryCache
from .model import Model


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
            looking_back = history(model, tools.dry, sampling, n_ctx)
            if looking_back or sampling.temperature > 0:
                self._chain = native.llama_sampler_chain_init(native.llama_sampler_chain_default_params())
            for sampler in looking_back:
                self._add(sampler)
            if looking_back:
                model.check_tokens(prompt)
                for token in prompt[-n_ctx:]:
                    brief.llama_sampler_accept(self._chain, token)
            if sampling.temperature > 0:
                self.seed = secrets.randbelow(N_SEEDS) if sampling.seed is None else sampling.seed
                for sampler in draw(model, sampling, self.seed):
                    self._add(sampler)
            elif looking_back:
                self._add(native.llama_sampler_init_greedy())
            # With so many allowed ones among the likeliest tokens the others can't matter; 0: they always may.
            self._enough = _enough(sampling) if not looking_back else 0
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

    def _allowed(self, array: Array) -> Array:
        """Those of the candidates that the grammar allows."""
        apply(self._grammar, array, native)
        return array[array["logit"] > -math.inf]

    def _draw_from(self, array: Array) -> int:
        if not self._chain:
            return int(array["id"][array["logit"].argmax()])
        view = apply(self._chain, array, self._calls)
        if not 0 <= view.selected < view.size:
            raise EngineFailure(f"llama.cpp's samplers chose candidate {view.selected} of {view.size}")
        return int(view.data[view.selected].id)  # some samplers move the beginning, so not array[selected]


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


def _with_logprobs(token: int, logits: Logits, count: int) -> Choice:
    """The choice with log probabilities of the model itself, before any sampling parameter."""
    best = logits.max()
    total = float(best) + math.log(float(np.exp(logits - best).sum(dtype=np.float64)))
    top: list[tuple[int, float]] = []
    if count:
        best_ones = likeliest(logits, count)
        ordered = best_ones[np.argsort(-logits[best_ones], kind="stable")]
        top = [(int(item), float(logits[item]) - total) for item in ordered]
    return Choice(token, float(logits[token]) - total, tuple(top))
