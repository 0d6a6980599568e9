"""A GGUF file's header, read and checked before native code sees the file, and the memory that the model will need.

llama.cpp itself ends the process on some of what is refused here (no blocks, an attention interval of 0), and fills
caches at once that the memory has no room for. The whole header is read into memory, within bounds.
"""

from __future__ import annotations

import math
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .. import settings
from ..errors import LoadError

_HEADER_STEPS = (32 * 2**20, 512 * 2**20)  # bytes to read: nearly every header fits in the first
_MAX_COUNT = 1_000_000  # of tensors, of metadata values
_MAX_KEPT = 4096  # elements: longer arrays (the vocabulary) are only counted
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_TOKENS = "tokenizer.ggml.tokens"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class TensorType(NamedTuple):
    """How a tensor or a cache is stored: `size` bytes for each block of `block` numbers."""

    number: int
    block: int
    size: int

    @property
    def is_quantized(self) -> bool:
        """Whether numbers share a scale."""
        return self.block > 1


_TYPES = {
    name: TensorType(*numbers)
    for name, *numbers in (
        ("f32", 0, 1, 4),
        ("f16", 1, 1, 2),
        ("q4_0", 2, 32, 18),
        ("q4_1", 3, 32, 20),
        ("q5_0", 6, 32, 22),
        ("q5_1", 7, 32, 24),
        ("q8_0", 8, 32, 34),
        ("q8_1", 9, 32, 36),
        ("q2_k", 10, 256, 84),
        ("q3_k", 11, 256, 110),
        ("q4_k", 12, 256, 144),
        ("q5_k", 13, 256, 176),
        ("q6_k", 14, 256, 210),
        ("q8_k", 15, 256, 292),
        ("iq2_xxs", 16, 256, 66),
        ("iq2_xs", 17, 256, 74),
        ("iq3_xxs", 18, 256, 98),
        ("iq1_s", 19, 256, 50),
        ("iq4_nl", 20, 32, 18),
        ("iq3_s", 21, 256, 110),
        ("iq2_s", 22, 256, 82),
        ("iq4_xs", 23, 256, 136),
        ("i8", 24, 1, 1),
        ("i16", 25, 1, 2),
        ("i32", 26, 1, 4),
        ("i64", 27, 1, 8),
        ("f64", 28, 1, 8),
        ("iq1_m", 29, 256, 56),
        ("bf16", 30, 1, 2),
        ("tq1_0", 34, 256, 54),
        ("tq2_0", 35, 256, 66),
        ("mxfp4", 39, 32, 17),
        ("nvfp4", 40, 64, 36),
    )
}
CACHE_TYPES = {name: _TYPES[name] for name in settings.CACHE_TYPES}

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
_DELTA_NETS = ("qwen35", "qwen3next")
_BY_NUMBER = {kind.number: kind for kind in _TYPES.values()}


@dataclass(frozen=True)
class Header:
    """What a GGUF file says of itself.

    `values`: metadata but long arrays. `lengths`: elements of every array. `tensor_bytes`: of all weights.
    """

    path: Path
    values: Mapping[str, Any]
    lengths: Mapping[str, int]
    tensor_bytes: int

    @property
    def architecture(self) -> str:
        """Name of the model's architecture; the prefix of its own keys."""
        return str(self.values["general.architecture"])

    def number(self, key: str, fallback: int = 0) -> int:
        """A whole number under the architecture's prefix; of an array the highest."""
        value = self.values.get(f"{self.architecture}.{key}", fallback)
        return int(max(value, default=0)) if isinstance(value, list) else int(value)

    def per_layer(self, key: str, fallback: int) -> list[int]:
        """A whole number for each layer."""
        layers = self.number("block_count")
        value = self.values.get(f"{self.architecture}.{key}", fallback)
        return [int(item) for item in value] if isinstance(value, list) else [int(value)] * layers

    @property
    def n_vocab(self) -> int:
        """Tokens of the vocabulary."""
        return self.lengths[_TOKENS]

    @property
    def n_ctx_train(self) -> int:
        """Tokens that the model was trained on."""
        return self.number("context_length")


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
            header = _Reader(path, data, size).header()
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
    heads, key_length = header.number("attention.head_count"), _head_length(header)
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
        interval = header.number("full_attention_interval", 4 if header.architecture.startswith(_DELTA_NETS) else 1)
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


class _Reader:
    """Goes through the bytes of a header. Raises struct.error at their end."""

    def __init__(self, path: Path, data: bytes, size: int) -> None:
        self._path = path
        self._data = data
        self._size = size
        self._at = 0

    def header(self) -> Header:
        """All of it: metadata, tensors, and whether the tensors' data is there."""
        magic = self._data[:4]
        if magic != b"GGUF":
            raise self._wrong(f"begins with {magic!r}; a GGUF file begins with b'GGUF'")
        self._at = 4
        version = self._number("I")
        if version not in _VERSIONS:
            raise self._wrong(f"has GGUF version {version}; allowed are {_VERSIONS[0]} and {_VERSIONS[1]}")
        n_tensors, n_values = self._number("Q"), self._number("Q")
        for what, count in (("tensors", n_tensors), ("metadata values", n_values)):
            if not 1 <= count <= _MAX_COUNT:
                raise self._wrong(f"says it has {count} {what}; allowed are 1 to {_MAX_COUNT}")
        values: dict[str, Any] = {}
        lengths: dict[str, int] = {}
        for _ in range(n_values):
            key = self._string()
            if key in values or key in lengths:
                raise self._wrong(f"has the metadata key {key!r} twice")
            kind = self._number("I")
            if kind == _ARRAY:
                kind, length = self._number("I"), self._number("Q")
                lengths[key] = length
                begin = self._at
                if length <= _MAX_KEPT:
                    values[key] = [self._value(key, kind) for _ in range(length)]
                else:
                    self._skip(key, kind, length)
                if key == _TOKENS and kind == _STRING:
                    self._check_tokens(begin, length)
            else:
                values[key] = self._value(key, kind)
        tensor_bytes = self._tensors(n_tensors, values.get("general.alignment", 32))
        return Header(self._path, values, lengths, tensor_bytes)

    def _tensors(self, count: int, alignment: object) -> int:
        """Go through the list of tensors and return the size of their data, which must all be in the file."""
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._wrong(f"general.alignment is {alignment!r}; allowed is a power of two")
        total = end = 0
        for _ in range(count):
            name = self._string()
            dims = [self._number("Q") for _ in range(self._limited(f"dimensions of tensor {name!r}", 4))]
            number, offset = self._number("I"), self._number("Q")
            kind = _BY_NUMBER.get(number)
            if kind is None:
                raise self._wrong(f"tensor {name!r} has the unknown type {number}")
            elements = math.prod(dims)
            if elements < 1 or (dims and dims[0] % kind.block):
                raise self._wrong(f"tensor {name!r} has the size {dims}; its rows come in blocks of {kind.block}")
            size = elements // kind.block * kind.size
            total += size
            end = max(end, offset + size)
        needed = -(-self._at // alignment) * alignment + end
        if needed > self._size:
            raise self._wrong(f"has {self._size} bytes, but its tensors need {needed}; it is not complete")
        return total

    def _value(self, key: str, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind not in _SCALARS:
            raise self._wrong(f"the metadata value {key!r} has the unknown type {kind}")
        return self._number(_SCALARS[kind])

    def _skip(self, key: str, kind: int, length: int) -> None:
        """Pass over a long array."""
        if kind == _STRING:
            unpack, data, at = struct.Struct("<Q").unpack_from, self._data, self._at
            for _ in range(length):  # a vocabulary: hundreds of thousands
                at += 8 + unpack(data, at)[0]
            self._at = at
        elif kind in _SCALARS:
            self._at += length * struct.calcsize(_SCALARS[kind])
        else:
            raise self._wrong(f"the metadata array {key!r} has the unknown type {kind}")
        if self._at > len(self._data):
            raise struct.error

    def _check_tokens(self, at: int, length: int) -> None:
        """Refuse a vocabulary with a token that is there twice: llama.cpp would end the process."""
        unpack, data = struct.Struct("<Q").unpack_from, self._data
        seen = set()
        for _ in range(length):
            end = at + 8 + unpack(data, at)[0]
            token = data[at + 8 : end]
            if token and token in seen:  # empty ones get names of their own
                raise self._wrong(f"{_TOKENS} has {token.decode('utf-8', 'replace')!r} twice; allowed is once")
            seen.add(token)
            at = end

    def _string(self) -> str:
        length = self._number("Q")
        text = self._data[self._at : self._at + length]
        if len(text) < length:
            raise struct.error
        self._at += length
        return text.decode("utf-8", "replace")

    def _number(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self._data, self._at)
        self._at += struct.calcsize(f"<{code}")
        return value

    def _limited(self, what: str, high: int) -> int:
        count: int = self._number("I")
        if count > high:
            raise self._wrong(f"says it has {count} {what}; allowed are up to {high}")
        return count

    def _wrong(self, what: str) -> LoadError:
        return LoadError(f"{self._path}: {what}")


def check_metadata(header: Header) -> None:
    """Refuse values on which llama.cpp would end the process, and models that can't answer. Raises LoadError."""

    def wrong(key: str, value: object, allowed: str) -> LoadError:
        return LoadError(f"{header.path}: {key} is {value!r}; allowed is {allowed}")

    architecture = header.values.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise wrong("general.architecture", architecture, "the name of a model's architecture")
    if header.values.get("split.count", 0) not in (0, 1):
        raise wrong("split.count", header.values["split.count"], "1: merge the parts of a split model to one file")
    if not header.lengths.get(_TOKENS):
        raise wrong(_TOKENS, header.values.get(_TOKENS), "a list of the tokens")
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
    layers, head = header.number("block_count"), _head_length(header)
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
    if header.architecture.startswith(_DELTA_NETS):
        product = header.number("ssm.state_size") * header.number("ssm.time_step_rank")
        yield "ssm.inner_size", inner, inner == product, f"{product} (ssm.state_size * ssm.time_step_rank)"


def _head_length(header: Header) -> int:
    """Numbers of a key in one head; 0 for a model without attention."""
    heads = header.number("attention.head_count")
    return header.number("attention.key_length", header.number("embedding_length") // heads if heads else 0)
