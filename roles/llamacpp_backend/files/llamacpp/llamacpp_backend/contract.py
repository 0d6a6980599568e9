"""The tensor contract of both models, as data: the one place that names inputs and outputs.

All shapes are without a batch dimension (max_batch_size 0).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorSpec:
    """Name, Triton data type and shape of a tensor; -1 is any length."""

    name: str
    data_type: str
    dims: tuple[int, ...] = (1,)


# Exactly one of these must be given: a raw completion (twice, for both families of clients), or a chat as JSON text.
PROMPT_NAMES = ("prompt", "text_input", "messages")

STREAM = "stream"

_PROMPTS = tuple(TensorSpec(name, "TYPE_STRING") for name in PROMPT_NAMES)

_SAMPLING = (
    TensorSpec("max_tokens", "TYPE_INT32"),
    TensorSpec("temperature", "TYPE_FP32"),
    TensorSpec("top_p", "TYPE_FP32"),
    TensorSpec("top_k", "TYPE_INT32"),
    TensorSpec("min_p", "TYPE_FP32"),
    TensorSpec("repetition_penalty", "TYPE_FP32"),
    TensorSpec("presence_penalty", "TYPE_FP32"),
    TensorSpec("frequency_penalty", "TYPE_FP32"),
    TensorSpec("seed", "TYPE_UINT64"),
    TensorSpec("stop", "TYPE_STRING", (-1,)),
)

TEXT_OUTPUTS = ("generated_text", "text_output")  # the same text under the names of both families of clients
FINISH_REASON = "finish_reason"
PROMPT_TOKENS = "prompt_tokens"
COMPLETION_TOKENS = "completion_tokens"

OUTPUTS = (
    *(TensorSpec(name, "TYPE_STRING") for name in TEXT_OUTPUTS),
    TensorSpec(FINISH_REASON, "TYPE_STRING"),
    TensorSpec(PROMPT_TOKENS, "TYPE_INT32"),
    TensorSpec(COMPLETION_TOKENS, "TYPE_INT32"),
)

FRONT_INPUTS = _PROMPTS + _SAMPLING
ENGINE_INPUTS = (*FRONT_INPUTS, TensorSpec(STREAM, "TYPE_BOOL"))
