"""A GGUF file's header, read and checked before native code sees the file, and the memory that the model will need.

llama.cpp itself ends the process on some of what is refused here (no blocks, an attention interval of 0), and fills
caches at once that the memory has no room for. The whole header is read into memory, within bounds.
"""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from ..errors import LoadError
from .gguf import CACHE_TYPES, Header, HeaderReader
from .metadata import DELTA_NETS, check_metadata, head_length

_HEADER_STEPS = (32 * 2**20, 512 * 2**20)  # bytes to read: nearly every header fits in the first


@dataclass(frozen=True)
class MemoryNeeds:
    """Bytes. `weights`: of the file's tensors. `per_token`: KV cache, over all layers with attention.

    `per_slot`: recurrent state and logits. `per_view_token`: buffers of a step for each token that one slot may look
    at. `fixed`: the other buffers of a step.
    """

    weights: int
    per_token: int
    per_slot: int
    per_view_token: int
    fixed: int


def read_header(path: Path) -> Header:
    """Read and check a GGUF file's header. Raises LoadError that says what is wrong, the value and what is allowed."""
    for limit in _HEADER_STEPS:
        data, size = _read(path, limit)
        try:
            header = HeaderReader(path, data, size).header()
        except struct.error as error:
            if len(data) < min(size, _HEADER_STEPS[-1]):
                continue  # an uncommonly long header
            raise LoadError(f"{path}: ends within its header, after {size} bytes; it is not complete") from error
        check_metadata(header)
        return header
    raise AssertionError("the last step either returns or raises")


def memory_needs(
    header: Header, *, cache_type_k: str, cache_type_v: str, flash_attention: str, n_ubatch: int
) -> MemoryNeeds:
    """What the model will take in memory: caches and states exactly, the buffers of a step at most."""
    heads, key_length = header.number("attention.head_count"), head_length(header)
    key, value = CACHE_TYPES[cache_type_k], CACHE_TYPES[cache_type_v]
    value_length = header.number("attention.value_length", key_length)
    per_head = key_length * key.size / key.block + value_length * value.size / value.block
    # A step's widest intermediates, a few of which are alive at once.
    experts = header.number("expert_used_count") * header.number("expert_feed_forward_length")
    width = 3 * max(header.number("feed_forward_length"), experts) + 6 * header.number("embedding_length")
    width += 3 * heads * key_length + 3 * header.number("ssm.inner_size")
    # The mask as f16; without flash attention as f32 too, and the scores of each head.
    per_view = 2 if flash_attention != "off" else 6 + 4 * heads
    recurrent, logits = _recurrent_bytes(header), 4 * header.n_vocab
    return MemoryNeeds(
        weights=header.tensor_bytes,
        per_token=round(sum(_kv_heads(header)) * per_head),
        per_slot=2 * recurrent + 2 * logits,  # each kept once and once more in a step's buffers
        per_view_token=n_ubatch * per_view,
        fixed=4 * n_ubatch * width,
    )


def _kv_heads(header: Header) -> list[int]:
    """Heads in the KV cache of each layer; 0 for a layer without attention."""
    heads = header.per_layer("attention.head_count_kv", header.number("attention.head_count", 1))
    del heads[header.number("block_count") - header.number("nextn_predict_layers") :]  # those are not loaded
    recurrent = header.values.get(f"{header.architecture}.attention.recurrent_layers")
    if not isinstance(recurrent, list):
        interval = header.number("full_attention_interval", 4 if header.architecture.startswith(DELTA_NETS) else 1)
        recurrent = [(layer + 1) % interval for layer in range(len(heads))]
    return [0 if other else count for count, other in zip(heads, recurrent, strict=False)]


def _recurrent_bytes(header: Header) -> int:
    """Recurrent state of one sequence, kept as f32."""
    state, inner = header.number("ssm.state_size"), header.number("ssm.inner_size")
    convolution = max(0, header.number("ssm.conv_kernel") - 1) * (inner + 2 * header.number("ssm.group_count") * state)
    kv_heads = _kv_heads(header)
    # Some architectures have both kinds in every layer.
    layers = kv_heads.count(0) if 0 in kv_heads else len(kv_heads)
    return layers * 4 * (state * inner + convolution)


def _read(path: Path, limit: int) -> tuple[bytes, int]:
    """The beginning of the file, and the size of all of it."""
    try:
        kind = path.stat().st_mode
        if stat.S_ISREG(kind):
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                return file.read(min(limit, size)), size
    except OSError as error:
        raise LoadError(f"{path}: can't be read: {error.strerror}") from error
    raise LoadError(f"{path}: can't be read: {'Is a directory' if stat.S_ISDIR(kind) else 'it is no regular file'}")
