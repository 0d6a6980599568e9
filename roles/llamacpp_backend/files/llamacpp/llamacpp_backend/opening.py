"""Opens a model version: reads its settings and its file, divides the memory, loads, warms up, starts the engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .chat import ChatTemplate, NoChatTemplate
from .constrain.constraints import Constraints
from .constrain.helper import TrialProcess
from .engine.core import EngineLimits
from .engine.job import Job
from .engine.loop import Engine
from .engine.prompt_cache import CacheLimits
from .errors import LoadError
from .exporter import Exporter
from .machine import QUOTA_VARIABLE, CpuPlan, available_memory, plan_cpu
from .parameters import Sampling, fit_to_model
from .prompts import PromptEncoder
from .settings import EngineSettings, ModelSettings, Place, check_defaults, read_engine_settings
from .sizing import ContextPlan, plan_context
from .triton_adapter import log, make_series

if TYPE_CHECKING:
    from .llama.model import Model

_TOOL_TEMPLATE = "tool_use"  # the name under which some models have a template for chats with tools
DEFAULT_N_BATCH = 512
DEFAULT_QUEUE_SIZE = 64
DEFAULT_CHECKPOINT_EVERY = 256
# Of the memory that is left once the model is loaded; a cache that takes more could not be paid for by the next model.
CACHE_SHARE = 4
MAX_COMPUTED_CACHE = 2 * 2**30
UNKNOWN_MEMORY_CACHE = 256 * 2**20


class TakesJobs(Protocol):
    """The part of the engine that is needed to serve."""

    def submit(self, job: Job) -> None:
        """Queue a job. Raises BadRequest and Unavailable."""

    def close(self) -> None:
        """Let accepted jobs end, take no more."""


@dataclass(frozen=True)
class Opened:
    """A model that answers.

    `fit` checks sampling against it, its constraint included. `close` is called once the engine is closed.
    """

    engine: TakesJobs
    prompts: PromptEncoder
    fit: Callable[[Sampling], Sampling]
    defaults: Mapping[str, object]
    n_ctx: int
    close: Callable[[], None]


def open_model(place: Place) -> Opened:
    """Load the model version at `place`. Raises LoadError."""
    path = place.version_dir / "model.json"
    settings = read_engine_settings(path)
    wanted = settings.engine
    cpu = plan_cpu(wanted.n_threads, len(os.sched_getaffinity(0)), os.environ.get(QUOTA_VARIABLE))
    if cpu.passive_wait:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # Only now, as OpenMP reads its variables when the library is loaded; and a front must never load it at all.
    from .llama.file import memory_needs, read_header
    from .llama.model import Model
    from .llama.runner import ContextOptions, LlamaRunner

    gguf = place.version_dir / "model.gguf"
    header = read_header(gguf)
    n_batch = wanted.n_batch or DEFAULT_N_BATCH
    n_ubatch = min(wanted.n_ubatch or n_batch, n_batch)
    available = available_memory()
    plan = plan_context(
        n_ctx=wanted.n_ctx,
        n_parallel=wanted.n_parallel,
        kv_unified=wanted.kv_unified,
        n_threads=cpu.n_threads,
        n_ctx_train=header.n_ctx_train,
        needs=memory_needs(
            header,
            cache_type_k=wanted.cache_type_k,
            cache_type_v=wanted.cache_type_v,
            flash_attention=wanted.flash_attention,
            n_ubatch=n_ubatch,
        ),
        available=available,
    )
    cache_bytes = _cache_bytes(wanted, plan, available)
    with ExitStack() as opened:  # closed in reverse order, after a failed load as after an unload
        model = Model(gguf, _log_native)
        opened.callback(model.close)
        options = ContextOptions(
            n_ctx=plan.n_ctx,
            n_slots=plan.n_parallel,
            n_batch=n_batch,
            n_ubatch=n_ubatch,
            n_threads=cpu.n_threads,
            kv_unified=wanted.kv_unified,
            n_cells=plan.n_cells,
            cache_type_k=wanted.cache_type_k,
            cache_type_v=wanted.cache_type_v,
            flash_attention=wanted.flash_attention,
        )
        check_defaults(
            path,
            settings.defaults,
            plan.n_ctx,
            n_vocab=model.n_vocab,
            n_parallel=plan.n_parallel,
            timeout_ms=wanted.timeout_ms,
        )
        runner = LlamaRunner(model, options)
        opened.callback(runner.close)
        chat = _chat(model)
        queue_size = wanted.queue_size or DEFAULT_QUEUE_SIZE
        every = DEFAULT_CHECKPOINT_EVERY if wanted.checkpoint_every is None else wanted.checkpoint_every
        limits = EngineLimits(queue_size, CacheLimits(cache_bytes, every), wanted.max_added_latency_ms)
        engine = Engine(runner, limits, _log_error)
        opened.callback(engine.close)
        labels = {"model_name": settings.name, "version": str(settings.version)}
        exporter = Exporter(engine.metrics.families(), labels, make_series, engine.snapshot, _log_error)
        opened.callback(exporter.close)
        trial = TrialProcess(gguf)
        opened.callback(trial.close)
        constraints = Constraints(trial, allow_grammar=wanted.allow_grammar)
        _log_plan(settings, model, cpu, plan, n_batch, queue_size, cache_bytes)
        close = opened.pop_all().close

    def fit(sampling: Sampling) -> Sampling:
        fitted = fit_to_model(sampling, n_vocab=model.n_vocab, n_parallel=plan.n_parallel, timeout_ms=wanted.timeout_ms)
        runner.prepare(fitted)
        return constraints.apply(fitted)

    prompts = PromptEncoder(model, chat, plan.n_ctx, longest_token_bytes=model.longest_token_bytes)
    return Opened(engine, prompts, fit, settings.defaults, plan.n_ctx, close)


def _cache_bytes(wanted: EngineSettings, plan: ContextPlan, available: int | None) -> int:
    """Memory for the prompt cache."""
    if wanted.prompt_cache_mib is not None:
        return wanted.prompt_cache_mib * 2**20
    if available is None:
        return UNKNOWN_MEMORY_CACHE
    return min(MAX_COMPUTED_CACHE, max(0, available - plan.memory) // CACHE_SHARE)


def _chat(model: Model) -> ChatTemplate | NoChatTemplate:
    try:
        with_tools = model.chat_renderer(_TOOL_TEMPLATE) if model.chat_template(_TOOL_TEMPLATE) else None
        return ChatTemplate(model.chat_renderer(), model.control_strings(), with_tools)
    except LoadError as error:  # raw prompts work all the same
        log("warning", f"chat is off: {error}")
        return NoChatTemplate(str(error))


def _log_plan(
    settings: ModelSettings,
    model: Model,
    cpu: CpuPlan,
    plan: ContextPlan,
    n_batch: int,
    queue_size: int,
    cache_bytes: int,
) -> None:
    log(
        "info",
        f"model {settings.name} version {settings.version} revision {settings.revision}: "
        f"architecture {model.architecture}, {model.bytes / 2**20:.1f} MiB, "
        f"n_ctx {plan.n_ctx} for each of {plan.n_parallel} at once (n_parallel), {plan.memory / 2**20:.0f} MiB in all "
        f"({plan.reason}), n_batch {n_batch}, prompt cache {cache_bytes / 2**20:.0f} MiB, "
        f"threads {cpu.n_threads} ({cpu.reason}; OMP_WAIT_POLICY {os.environ.get('OMP_WAIT_POLICY', 'default')}), "
        f"queue_size {queue_size}",
    )


def _log_error(line: str) -> None:
    log("error", line)


def _log_native(level: str, line: str) -> None:
    """llama.cpp's log: its many info lines are of use only to those who raise Triton's verbosity."""
    log("debug" if level == "info" else level, f"llama.cpp: {line}")
