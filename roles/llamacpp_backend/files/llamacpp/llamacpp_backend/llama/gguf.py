"""The format of GGUF files: types of numbers, and a reader of headers that is bounded whatever the bytes say."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .. import settings
from ..errors import LoadError

_MAX_COUNT = 1_000_000  # of tensors, of metadata values
_MAX_KEPT = 4096  # elements: longer arrays (the vocabulary) are only counted
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
TOKENS = "tokenizer.ggml.tokens"
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


TYPES = {
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
        ("q1_0", 41, 128, 18),
        ("q2_0", 42, 64, 18),
    )
}
CACHE_TYPES = {name: TYPES[name] for name in settings.CACHE_TYPES}
_BY_NUMBER = {kind.number: kind for kind in TYPES.values()}


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
        return self.lengths[TOKENS]

    @property
    def n_ctx_train(self) -> int:
        """Tokens that the model was trained on."""
        return self.number("context_length")


class HeaderReader:
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
                if key == TOKENS and kind == _STRING:
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
                raise self._wrong(f"{TOKENS} has {token.decode('utf-8', 'replace')!r} twice; allowed is once")
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
