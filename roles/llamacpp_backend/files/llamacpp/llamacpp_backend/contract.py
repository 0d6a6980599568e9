"""The tensor contract of both models, as data: the one place that names inputs and outputs.

All shapes are without a batch dimension (max_batch_size 0).
"""

from __future__ import annotations

from dataclasses import dataclass

from .parameters import PARAMETERS


@dataclass(frozen=True)
class TensorSpec:
    """Name, Triton data type and shape of a tensor; -1 is any length."""

    name: str
    data_type: str
    dims: tuple[int, ...] = (1,)


# Exactly one of these must be given: a raw completion (twice, for both families of clients), or a chat as JSON text.
PROMPT_NAMES = ("prompt", "text_input", "messages")
# What a chat template gets beside the messages, as JSON text.
CHAT_NAMES = ("tools", "chat_template_kwargs")
STREAM = "stream"

FRONT_INPUTS = (
    *(TensorSpec(name, "TYPE_STRING") for name in (*PROMPT_NAMES, *CHAT_NAMES)),
    *(TensorSpec(item.name, item.data_type, item.dims) for item in PARAMETERS),
)
ENGINE_INPUTS = (*FRONT_INPUTS, TensorSpec(STREAM, "TYPE_BOOL"))

# The first dimension is the answers to one prompt (`n`), except for prompt_tokens and for index, of a stream's piece.
OUTPUTS = (
    TensorSpec("generated_text", "TYPE_STRING", (-1,)),  # the same text under the names of both families of clients
    TensorSpec("text_output", "TYPE_STRING", (-1,)),
    TensorSpec("index", "TYPE_INT32"),
    TensorSpec("finish_reason", "TYPE_STRING", (-1,)),
    TensorSpec("prompt_tokens", "TYPE_INT32"),
    TensorSpec("cached_tokens", "TYPE_INT32"),
    TensorSpec("completion_tokens", "TYPE_INT32", (-1,)),
    TensorSpec("logprobs", "TYPE_STRING", (-1,)),  # JSON text
    TensorSpec("details", "TYPE_STRING", (-1,)),  # JSON text
)
