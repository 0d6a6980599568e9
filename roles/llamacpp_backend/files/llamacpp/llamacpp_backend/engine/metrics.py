"""Counters, gauges and histograms of the engine under the names that dashboards query (vLLM's set), as plain numbers.

Written by the engine's thread; others may read at any time and see each number whole, if not all of one moment.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from .job import FinishReason

if TYPE_CHECKING:
    from .sequence import Answer

TTFT_EDGES = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
TOKEN_EDGES = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_EDGES = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
STEP_EDGES = (1, 8, *(2**power for power in range(4, 15)))
COUNT_EDGES = (1, 2, 5, 10, 20)


def length_edges(n_ctx: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50 ... up to n_ctx."""
    return tuple(edge for power in range(8) for digit in (1, 2, 5) if (edge := digit * 10**power) <= n_ctx)


@dataclass(slots=True)
class Scalar:
    """A counter, which only grows, or a gauge."""

    value: float = 0


@dataclass(slots=True)
class Histogram:
    """`counts[i]`: values up to `edges[i]` and above the edge before; the last count: values above all edges."""

    edges: Sequence[float]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.edges) + 1)

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with its series by label values; `label` is the name of the one label, "" when there is none."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    series: Mapping[str, Scalar | Histogram]
    label: str = ""


class Metrics:
    """All figures of one engine. Times in seconds, lengths in tokens."""

    def __init__(self, n_ctx: int) -> None:
        self.running = Scalar()
        self.waiting = Scalar()
        self.kv_usage = Scalar()
        self.prompt_tokens = Scalar()
        self.prompt_tokens_cached = Scalar()
        self.generation_tokens = Scalar()
        self.prefix_queries = Scalar()
        self.prefix_hits = Scalar()
        self.preemptions = Scalar()
        self.failed_steps = Scalar()
        self.finished = {reason: Scalar() for reason in ("stop", "length", "deadline", "abort", "error")}
        self.rejections = {reason: Scalar() for reason in ("queue_full", "closing")}
        self.ttft = Histogram(TTFT_EDGES)
        self.inter_token = Histogram(TOKEN_EDGES)
        self.time_per_token = Histogram(TOKEN_EDGES)
        self.end_to_end = Histogram(REQUEST_EDGES)
        self.queue_time = Histogram(REQUEST_EDGES)
        self.prefill_time = Histogram(REQUEST_EDGES)
        self.decode_time = Histogram(REQUEST_EDGES)
        self.inference_time = Histogram(REQUEST_EDGES)
        self.request_prompt = Histogram(length_edges(n_ctx))
        self.request_generation = Histogram(length_edges(n_ctx))
        self.asked_max_tokens = Histogram(length_edges(n_ctx))
        self.asked_n = Histogram(COUNT_EDGES)
        self.step_tokens = Histogram(STEP_EDGES)

    def count_start(self, answer: Answer, now: float) -> None:
        """An answer has its first token."""
        self.prompt_tokens.value += answer.n_prompt
        self.prompt_tokens_cached.value += answer.cached
        if answer.sampling.cache_prompt:
            self.prefix_queries.value += answer.n_prompt
            self.prefix_hits.value += answer.cached
        self.ttft.observe(now - answer.ticket.arrived_at)
        self.request_prompt.observe(answer.n_prompt)
        self.asked_max_tokens.observe(answer.limit)
        if answer.admitted_at is not None:
            self.queue_time.observe(answer.admitted_at - answer.ticket.arrived_at)
            self.prefill_time.observe(now - answer.admitted_at)

    def count_end(self, answer: Answer, reason: FinishReason, now: float) -> None:
        """An answer is complete."""
        self.finished[reason].value += 1
        self.end_to_end.observe(now - answer.ticket.arrived_at)
        self.request_generation.observe(answer.count)
        if answer.admitted_at is not None:
            self.inference_time.observe(now - answer.admitted_at)
        if answer.first_token_at is not None:
            self.decode_time.observe(now - answer.first_token_at)
            if answer.count > 1:
                self.time_per_token.observe((now - answer.first_token_at) / (answer.count - 1))

    def families(self) -> Iterator[Family]:
        """Every metric. The objects in the series stay the same as long as the engine lives."""
        for name, text, gauge in (
            ("vllm:num_requests_running", "Answers that have a slot.", self.running),
            ("vllm:num_requests_waiting", "Answers that wait for a slot.", self.waiting),
            ("vllm:kv_cache_usage_perc", "Share of the KV cache that running answers use, 0 to 1.", self.kv_usage),
        ):
            yield Family(name, "gauge", text, {"": gauge})
        yield Family(
            "nv_trt_llm_request_metrics",
            "gauge",
            "The same two under the names that routers look for at a Triton server.",
            {"waiting": self.waiting, "scheduled": self.running},
            "request_type",
        )
        yield Family(
            "nv_trt_llm_kv_cache_block_metrics",
            "gauge",
            "KV cache use, likewise.",
            {"fraction": self.kv_usage},
            "kv_cache_block_type",
        )
        for name, text, counter in (
            ("vllm:prompt_tokens_total", "Prompt tokens of answers that got their first token.", self.prompt_tokens),
            ("vllm:prompt_tokens_cached_total", "Those of them that were not computed.", self.prompt_tokens_cached),
            ("vllm:generation_tokens_total", "Tokens generated.", self.generation_tokens),
            ("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prompt cache.", self.prefix_queries),
            ("vllm:prefix_cache_hits_total", "Prompt tokens found there.", self.prefix_hits),
            ("vllm:num_preemptions_total", "Answers that had to give up their slot for a while.", self.preemptions),
            ("llamacpp:failed_steps_total", "Steps that llama.cpp refused half-way.", self.failed_steps),
        ):
            yield Family(name, "counter", text, {"": counter})
        yield Family(
            "vllm:request_success_total", "counter", "Answers that ended, by how.", self.finished, "finished_reason"
        )
        yield Family(
            "vllm:admission_rejections_total", "counter", "Requests refused, by why.", self.rejections, "reason"
        )
        for name, text, histogram in (
            ("vllm:time_to_first_token_seconds", "Arrival to first token.", self.ttft),
            ("vllm:inter_token_latency_seconds", "Gap between two tokens of an answer.", self.inter_token),
            ("vllm:request_time_per_output_token_seconds", "Mean gap of an answer.", self.time_per_token),
            ("vllm:e2e_request_latency_seconds", "Arrival to the answer's end.", self.end_to_end),
            ("vllm:request_queue_time_seconds", "Arrival to slot.", self.queue_time),
            ("vllm:request_prefill_time_seconds", "Slot to first token.", self.prefill_time),
            ("vllm:request_decode_time_seconds", "First token to the answer's end.", self.decode_time),
            ("vllm:request_inference_time_seconds", "Slot to the answer's end.", self.inference_time),
            ("vllm:request_prompt_tokens", "Length of prompts.", self.request_prompt),
            ("vllm:request_generation_tokens", "Length of answers.", self.request_generation),
            ("vllm:request_max_num_generation_tokens", "Longest answer that was possible.", self.asked_max_tokens),
            ("vllm:request_params_n", "Answers asked for by a request.", self.asked_n),
            ("vllm:iteration_tokens_total", "Tokens in a step.", self.step_tokens),
        ):
            yield Family(name, "histogram", text, {"": histogram})
