"""The engine's Triton model: opens everything at load, hands requests to the worker, closes in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .chat import ChatTemplate, NoChatTemplate
from .errors import BackendError, EngineFailure, LoadError
from .generator import generate
from .link import EngineLink, LinkReply, link_path
from .machine import QUOTA_VARIABLE, available_memory, plan_cpu
from .prompts import PromptEncoder
from .requests import RawRequest, parse_generate
from .settings import Place, check_defaults, read_engine_settings
from .sizing import plan_context
from .triton_adapter import TritonReply, log, read_request
from .worker import Job, Worker

if TYPE_CHECKING:
    from .runtime import Model

DEFAULT_N_BATCH = 256  # also bounds how long a prefill step delays a cancellation
DEFAULT_QUEUE_SIZE = 64


class EngineModel:
    """Serves requests with a worker: Triton's by `execute`, those of a front by `take`.

    `close` is called once the worker has ended.
    """

    def __init__(
        self,
        prompts: PromptEncoder,
        worker: Worker,
        defaults: Mapping[str, object],
        n_ctx: int,
        link_path: Path,
        close: Callable[[], None],
    ) -> None:
        self._prompts = prompts
        self._worker = worker
        self._defaults = defaults
        self._n_ctx = n_ctx
        self._close = close
        self._link = EngineLink(link_path, partial(self.take, stream_default=False))

    def execute(self, requests: Sequence[Any]) -> None:
        """Check and queue Triton's requests; a refused one is answered at once."""
        for request in requests:
            reply = TritonReply(request)
            self.take(partial(read_request, request), reply, stream_default=True)

    def take(self, read: Callable[[], RawRequest], reply: TritonReply | LinkReply, *, stream_default: bool) -> None:
        """Check and queue what `read` returns; whatever happens, the client gets its one final response."""
        try:
            try:
                self._accept(read(), reply, stream_default)
            except BackendError as error:
                reply.fail(error)
            except Exception as error:
                log("error", f"a request could not be read: {error!r}")
                reply.fail(EngineFailure(f"internal error: {error!r}"))
        except Exception as error:  # sending failed: the other requests must not suffer
            log("error", f"an answer could not be delivered: {error!r}")

    def finalize(self) -> None:
        """Let all accepted requests end, then free the model."""
        self._link.close()
        self._worker.close()
        self._link.join()
        self._close()

    def _accept(self, raw: RawRequest, reply: TritonReply | LinkReply, stream_default: bool) -> None:
        wanted = parse_generate(raw, self._defaults, self._n_ctx, stream_default=stream_default)
        reply.stream = wanted.stream
        self._worker.submit(Job(self._prompts.encode(wanted), wanted.sampling, reply))


def open_engine(place: Place) -> EngineModel:
    """Load the model version at `place`. Raises LoadError."""
    path = place.version_dir / "model.json"
    settings = read_engine_settings(path)
    cpu = plan_cpu(settings.engine.n_threads, len(os.sched_getaffinity(0)), os.environ.get(QUOTA_VARIABLE))
    if cpu.passive_wait:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # Only now, as OpenMP reads its variables when the library is loaded; and a front must never load it at all.
    from .runtime import Model, Runtime

    with ExitStack() as opened:  # closed in reverse order, after a failed load as after an unload
        model = Model(place.version_dir / "model.gguf", _log_native)
        opened.callback(model.close)
        plan = plan_context(settings.engine.n_ctx, model.n_ctx_train, model.kv_bytes_per_token(), available_memory())
        check_defaults(path, settings.defaults, plan.n_ctx)
        n_batch = settings.engine.n_batch or DEFAULT_N_BATCH
        runtime = Runtime(model, n_ctx=plan.n_ctx, n_batch=n_batch, n_threads=cpu.n_threads)
        opened.callback(runtime.close)
        runtime.warm_up()
        chat = _chat(model)
        close = opened.pop_all().close
    queue_size = settings.engine.queue_size or DEFAULT_QUEUE_SIZE
    log(
        "info",
        f"model {settings.name} version {settings.version} revision {settings.revision}: "
        f"architecture {model.architecture}, {model.bytes / 2**20:.1f} MiB, "
        f"n_ctx {plan.n_ctx} ({plan.reason}), n_batch {runtime.n_batch}, "
        f"threads {cpu.n_threads} ({cpu.reason}; OMP_WAIT_POLICY {os.environ.get('OMP_WAIT_POLICY', 'default')}), "
        f"queue_size {queue_size}",
    )

    def run(job: Job) -> Any:
        return generate(runtime, job.prompt, job.sampling, job.reply.piece, job.reply.client_gone)

    worker = Worker(run, queue_size, lambda line: log("error", line))
    prompts = PromptEncoder(model, chat, plan.n_ctx)
    return EngineModel(
        prompts, worker, settings.defaults, plan.n_ctx, link_path(place.model_name, place.version), close
    )


def _chat(model: Model) -> ChatTemplate | NoChatTemplate:
    try:
        return ChatTemplate(model.chat_renderer(), model.control_strings())
    except LoadError as error:  # raw prompts work all the same
        log("warning", f"chat is off: {error}")
        return NoChatTemplate(str(error))


def _log_native(level: str, line: str) -> None:
    """llama.cpp's log: its many info lines are of use only to those who raise Triton's verbosity."""
    log("debug" if level == "info" else level, f"llama.cpp: {line}")
