"""The tensor contract of both models, as data: the one place that names inputs, outputs and private fields.

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

_ANSWER = (
    *(TensorSpec(name, "TYPE_STRING") for name in TEXT_OUTPUTS),
    TensorSpec(FINISH_REASON, "TYPE_STRING"),
    TensorSpec(PROMPT_TOKENS, "TYPE_INT32"),
    TensorSpec(COMPLETION_TOKENS, "TYPE_INT32"),
)

# Private to front and engine. A request that carries PRIVATE_KEY gets its error as JSON text in PRIVATE_STATUS,
# because Triton turns every error of a called model into INTERNAL; PRIVATE_CANCEL ends the request with that key,
# because a cancelled caller does not cancel the model it has called. PRIVATE_PARAMETERS carries the client's
# parameters as JSON text: a call inside the server takes whole numbers, booleans and text, but no fractions.
PRIVATE_STATUS = "private_status"
PRIVATE_KEY = "private_key"
PRIVATE_CANCEL = "private_cancel"
PRIVATE_PARAMETERS = "private_parameters"

FRONT_INPUTS = _PROMPTS + _SAMPLING
FRONT_OUTPUTS = _ANSWER
ENGINE_INPUTS = (*FRONT_INPUTS, TensorSpec(STREAM, "TYPE_BOOL"))
ENGINE_OUTPUTS = (*_ANSWER, TensorSpec(PRIVATE_STATUS, "TYPE_STRING"))
