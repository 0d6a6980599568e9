"""Sampling -> the samplers of a chain, in the order of llama.cpp's own tools.

Penalties, DRY, top_n_sigma, top_k, typical_p, top_p, min_p, XTC, temperature, then the draw; with mirostat penalties,
DRY, temperature, mirostat. What is off is left out, so top_k comes first as a rule and makes all after it cheap.
"""

from __future__ import annotations

from typing import Any

import llama_cpp as native

from ..parameters import Sampling
from .dry import DryCache
from .model import Model

_MIROSTAT_M = 100  # candidates from which mirostat 1 estimates the distribution's slope, as llama.cpp's tools have it


def history(model: Model, dry: DryCache, sampling: Sampling, n_ctx: int) -> list[Any]:
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


def draw(model: Model, sampling: Sampling, seed: int) -> list[Any]:
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
