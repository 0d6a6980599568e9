"""How many answers at once, and how many tokens for each: by the settings, the model and the memory there is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .errors import LoadError
from .llama.file import MemoryNeeds

DEFAULT_N_CTX = 4096
MIN_COMPUTED_N_CTX = 512
MAX_COMPUTED_N_PARALLEL = 16
_STEP = 256  # llama.cpp rounds the cells of a cache to this
_RESERVE = 64 * 2**20  # the process itself, and room to breathe


@dataclass(frozen=True)
class ContextPlan:
    """The size of a context: tokens of one request (`n_ctx`) and of all together (`n_cells`), bytes of `memory`.

    `n_cells` is n_ctx * n_parallel, less only where requests share one pool. `memory` includes the weights.
    """

    n_ctx: int
    n_parallel: int
    n_cells: int
    memory: int
    reason: str


@dataclass(frozen=True)
class _Sizes:
    """One way to divide the memory."""

    n_ctx: int
    n_parallel: int
    n_cells: int


def plan_context(
    *,
    n_ctx: int,
    n_parallel: int,
    kv_unified: bool,
    n_threads: int,
    n_ctx_train: int,
    needs: MemoryNeeds,
    available: int | None,
) -> ContextPlan:
    """Choose what is 0: n_ctx as the model was trained, at most DEFAULT_N_CTX; n_parallel two for each thread, 4 to 16.

    `available`: bytes before the model is loaded, None when unknown. Where they do not suffice, computed numbers
    become smaller, n_parallel first, and a shared pool before either. Raises LoadError when what was set does not
    fit: llama.cpp would fill the cache at once and the kernel would end the process.
    """
    wanted_ctx = n_ctx or min(n_ctx_train, DEFAULT_N_CTX)
    wanted_parallel = n_parallel or max(4, min(MAX_COMPUTED_N_PARALLEL, 2 * n_threads))
    wanted = _Sizes(wanted_ctx, wanted_parallel, wanted_ctx * wanted_parallel)
    words = [_source("n_ctx", wanted_ctx, n_ctx), _source("n_parallel", wanted_parallel, n_parallel)]
    words.append(f"the model was trained on {n_ctx_train} tokens{', LESS than n_ctx' * (n_ctx > n_ctx_train)}")

    for sizes in (wanted, *_smaller(wanted, n_ctx, n_parallel, kv_unified)):
        memory = _memory(sizes, needs, kv_unified)
        if available is None or memory <= available:
            if sizes != wanted:
                words.append(f"reduced from {_shown(wanted)} to fit the memory, {_mib(available or 0)} available")
            return ContextPlan(sizes.n_ctx, sizes.n_parallel, sizes.n_cells, memory, "; ".join(words))
    raise LoadError(
        f"{_shown(wanted)} needs {_mib(_memory(wanted, needs, kv_unified))} of memory, {_mib(needs.weights)} of them "
        f"for the weights; {_mib(available or 0)} are available, and even {_shown(sizes)} needs {_mib(memory)}"
    )


def _smaller(wanted: _Sizes, n_ctx: int, n_parallel: int, kv_unified: bool) -> Iterator[_Sizes]:
    """Ever smaller ways to divide the memory; `n_ctx`, `n_parallel` as they were set, 0: free to be reduced."""
    if kv_unified:  # answers that are not all long fit a smaller pool
        for n_cells in range(wanted.n_cells // _STEP * _STEP, wanted.n_ctx, -_STEP):
            yield _Sizes(wanted.n_ctx, wanted.n_parallel, n_cells)
    least = n_parallel or 1
    for parallel in range(wanted.n_parallel, least - 1, -1):
        yield _Sizes(wanted.n_ctx, parallel, wanted.n_ctx * (1 if kv_unified else parallel))
    if not n_ctx:
        for length in range((wanted.n_ctx - 1) // _STEP * _STEP, MIN_COMPUTED_N_CTX - 1, -_STEP):
            yield _Sizes(length, least, length * (1 if kv_unified else least))


def _memory(sizes: _Sizes, needs: MemoryNeeds, kv_unified: bool) -> int:
    """Bytes that these sizes take."""
    view = _rounded(sizes.n_cells if kv_unified else sizes.n_ctx)
    cells = view if kv_unified else view * sizes.n_parallel
    buffers = needs.fixed + needs.per_view_token * view
    return _RESERVE + needs.weights + buffers + needs.per_slot * sizes.n_parallel + needs.per_token * cells


def _rounded(tokens: int) -> int:
    return -(-tokens // _STEP) * _STEP


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def _source(name: str, value: int, was_set: int) -> str:
    return f"{name} {value} {'set' if was_set else 'computed'}"


def _shown(sizes: _Sizes) -> str:
    pool = f" in a pool of {sizes.n_cells}" if sizes.n_cells != sizes.n_ctx * sizes.n_parallel else ""
    return f"n_ctx {sizes.n_ctx} for n_parallel {sizes.n_parallel}{pool}"
