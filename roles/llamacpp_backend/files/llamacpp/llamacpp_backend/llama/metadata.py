"""What a GGUF file's metadata must be like before llama.cpp may see it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..errors import LoadError
from .gguf import TOKENS, Header

_REQUIRED = ("block_count", "context_length", "embedding_length")
_COUNTS = {  # keys under the architecture's prefix, with what is allowed where they are given
    "block_count": (1, 512),
    "context_length": (1, 2**30),
    "embedding_length": (1, 2**20),
    "feed_forward_length": (0, 2**24),
    "attention.head_count": (0, 2**12),
    "attention.head_count_kv": (0, 2**12),
    "attention.key_length": (0, 2**16),
    "attention.value_length": (0, 2**16),
    "full_attention_interval": (1, 1024),
    "ssm.conv_kernel": (0, 2**10),
    "ssm.state_size": (0, 2**16),
    "ssm.group_count": (0, 2**12),
    "ssm.inner_size": (0, 2**20),
    "ssm.time_step_rank": (0, 2**20),
    "rope.dimension_count": (0, 2**16),
    "rope.dimension_sections": (0, 2**16),
    "expert_count": (0, 1024),
    "expert_used_count": (0, 1024),
    "expert_feed_forward_length": (0, 2**24),
    "nextn_predict_layers": (0, 512),
}
DELTA_NETS = ("qwen35", "qwen3next")


def check_metadata(header: Header) -> None:
    """Refuse values on which llama.cpp would end the process, and models that can't answer. Raises LoadError."""

    def wrong(key: str, value: object, allowed: str) -> LoadError:
        return LoadError(f"{header.path}: {key} is {value!r}; allowed is {allowed}")

    architecture = header.values.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise wrong("general.architecture", architecture, "the name of a model's architecture")
    if header.values.get("split.count", 0) not in (0, 1):
        raise wrong("split.count", header.values["split.count"], "1: merge the parts of a split model to one file")
    if not header.lengths.get(TOKENS):
        raise wrong(TOKENS, header.values.get(TOKENS), "a list of the tokens")
    for name in _REQUIRED:
        if f"{architecture}.{name}" not in header.values:
            raise wrong(f"{architecture}.{name}", None, "an integer")
    for name, (low, high) in _COUNTS.items():
        key = f"{architecture}.{name}"
        value = header.values.get(key, low)
        for number in value if isinstance(value, list) else [value]:
            if not isinstance(number, int) or isinstance(number, bool) or not low <= number <= high:
                raise wrong(key, number, f"an integer from {low} to {high}")
    for key, value in header.values.items():
        if key.endswith("_epsilon") and not (isinstance(value, float) and 0 <= value < math.inf):
            raise wrong(key, value, "a number of 0 or more")
    for name, value, allowed, words in _relations(header):
        if not allowed:
            raise wrong(f"{architecture}.{name}", value, words)


def _relations(header: Header) -> Iterator[tuple[str, object, bool, str]]:
    """Sizes that must fit each other: name, value, whether it is allowed, what is allowed."""
    layers, head = header.number("block_count"), head_length(header)
    per_layer = header.values.get(f"{header.architecture}.attention.head_count_kv")
    if isinstance(per_layer, list):
        yield "attention.head_count_kv", per_layer, len(per_layer) >= layers, f"a list of {layers} integers"
    if head and f"{header.architecture}.rope.dimension_count" in header.values:
        rotated = header.number("rope.dimension_count")
        words = f"an even integer from 2 to {head} (the length of a head)"
        yield "rope.dimension_count", rotated, 2 <= rotated <= head and rotated % 2 == 0, words
    sections = header.values.get(f"{header.architecture}.rope.dimension_sections", [])
    if head and isinstance(sections, list):
        words = f"a list of integers, together at most {head} (the length of a head)"
        yield "rope.dimension_sections", sections, sum(sections) <= head, words
    used, experts = header.number("expert_used_count"), header.number("expert_count")
    words = f"an integer from {min(experts, 1)} to {experts} (expert_count)"
    yield "expert_used_count", used, min(experts, 1) <= used <= experts, words
    inner = header.number("ssm.inner_size")
    if header.architecture.startswith(DELTA_NETS):
        product = header.number("ssm.state_size") * header.number("ssm.time_step_rank")
        yield "ssm.inner_size", inner, inner == product, f"{product} (ssm.state_size * ssm.time_step_rank)"


def head_length(header: Header) -> int:
    """Numbers of a key in one head; 0 for a model without attention."""
    heads = header.number("attention.head_count")
    return header.number("attention.key_length", header.number("embedding_length") // heads if heads else 0)
