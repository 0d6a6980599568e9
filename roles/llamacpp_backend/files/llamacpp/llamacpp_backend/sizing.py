"""How many tokens the context gets: by the settings, the model and the memory that is left."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import LoadError

DEFAULT_N_CTX = 4096
MIN_COMPUTED_N_CTX = 512
_STEP = 256  # llama.cpp rounds its cells to this
_RESERVE = 64 * 2**20  # compute buffers, and room to breathe


@dataclass(frozen=True)
class ContextPlan:
    """Context length in tokens and why it is that."""

    n_ctx: int
    reason: str


def plan_context(requested: int, n_ctx_train: int, bytes_per_token: int, available: int | None) -> ContextPlan:
    """Choose n_ctx; `requested` 0: the model's training context, at most DEFAULT_N_CTX, less when memory is short.

    `available`: bytes, None when unknown. Raises LoadError when the KV cache does not fit: llama.cpp would fill it
    at once and the kernel would kill the process.
    """
    wanted = requested or min(n_ctx_train, DEFAULT_N_CTX)
    reason = "set" if requested else f"computed, the model was trained on {n_ctx_train}"
    if requested > n_ctx_train:
        reason = f"set, MORE than the {n_ctx_train} the model was trained on"
    if available is None:
        return ContextPlan(wanted, reason)
    fitting = max(0, available - _RESERVE) // max(1, bytes_per_token)
    if wanted <= fitting:
        return ContextPlan(wanted, reason)
    reduced = fitting // _STEP * _STEP
    if requested or reduced < min(MIN_COMPUTED_N_CTX, wanted):
        raise LoadError(
            f"n_ctx {wanted} needs {wanted * bytes_per_token / 2**20:.0f} MiB for the KV cache beside "
            f"{_RESERVE / 2**20:.0f} MiB of buffers; {available / 2**20:.0f} MiB of memory are available, "
            f"enough for n_ctx {reduced}"
        )
    return ContextPlan(reduced, f"reduced from {wanted} to fit the memory, {available / 2**20:.0f} MiB available")
