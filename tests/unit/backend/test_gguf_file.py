"""A GGUF header read in plain Python: what it says, what is refused, and the memory that a model will need."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llamacpp_backend.errors import LoadError
from llamacpp_backend.llama import file
from llamacpp_backend.llama import gguf as formats
from llamacpp_backend.llama.file import MemoryNeeds, memory_needs, read_header
from llamacpp_backend.llama.gguf import Header

DEMO = Path(__file__).resolve().parents[3] / "files" / "demo_model" / "demo.gguf"
CODES = {"I": 4, "f": 6, "?": 7, "Q": 10}
F32, F16, Q8_0, Q4_K = 0, 1, 8, 12

DENSE: dict[str, Any] = {
    "general.architecture": "qwen3",
    "general.alignment": 32,
    "qwen3.block_count": 4,
    "qwen3.context_length": 2048,
    "qwen3.embedding_length": 64,
    "qwen3.feed_forward_length": 128,
    "qwen3.attention.head_count": 4,
    "qwen3.attention.head_count_kv": 2,
    "qwen3.attention.key_length": 32,
    "qwen3.attention.value_length": 32,
    "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
}
HYBRID: dict[str, Any] = {
    **{key.replace("qwen3.", "qwen35."): value for key, value in DENSE.items()},
    "general.architecture": "qwen35",
    "qwen35.block_count": 8,
    "qwen35.full_attention_interval": 4,
    "qwen35.rope.dimension_count": 8,
    "qwen35.rope.dimension_sections": [2, 1, 1, 0],
    "qwen35.ssm.conv_kernel": 4,
    "qwen35.ssm.state_size": 16,
    "qwen35.ssm.group_count": 2,
    "qwen35.ssm.time_step_rank": 4,
    "qwen35.ssm.inner_size": 64,
}
TENSORS = [("a.weight", [64, 3], F16), ("b.weight", [64], F32), ("c.weight", [256, 2], Q4_K)]
TENSOR_BYTES = 64 * 3 * 2 + 64 * 4 + 2 * 144


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def typed(value: Any) -> bytes:
    """A metadata value with its type; whole numbers as 32 bits where they fit."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        items = [typed(item) for item in value] or [typed(0)]
        return (
            struct.pack("<I", 9)
            + items[0][:4]
            + struct.pack("<Q", len(value))
            + b"".join(i[4:] for i in items[: len(value)])
        )
    code = "?" if isinstance(value, bool) else "f" if isinstance(value, float) else "I" if value < 2**32 else "Q"
    return struct.pack(f"<I{code}", CODES[code], value)


def gguf(
    values: Mapping[str, Any], tensors: list[tuple[str, list[int], int]] | None = None, *, data: bytes | None = None
) -> bytes:
    """A whole file; `data`: in place of the tensors' zeros."""
    tensors = TENSORS if tensors is None else tensors
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    for key, value in values.items():
        head += text(key) + typed(value)
    offset = 0
    for name, dims, kind in tensors:
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
        block, size = next(((t.block, t.size) for t in formats.TYPES.values() if t.number == kind), (1, 1))
        offset += -(-math.prod(dims) // block * size // 32) * 32
    head += bytes(-len(head) % 32)
    return head + (bytes(offset) if data is None else data)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def read(path: Path, content: bytes) -> Header:
    path.write_bytes(content)
    return read_header(path)


def refused(path: Path, content: bytes) -> str:
    """What is said of a file that is refused, without its name."""
    with pytest.raises(LoadError) as error:
        read(path, content)
    assert str(error.value).startswith(f"{path}: ")
    return str(error.value).removeprefix(f"{path}: ")


def changed(values: Mapping[str, Any], **names: Any) -> dict[str, Any]:
    """`values` with some replaced, under the architecture's prefix; `_` stands for a dot, None takes away."""
    prefix = values["general.architecture"]
    result = dict(values)
    for name, value in names.items():
        key = next((k for k in values if k.replace(".", "_") in (name, f"{prefix}_{name}")), f"{prefix}.{name}")
        result[key] = value
        if value is None:
            del result[key]
    return result


def test_header_of_the_demo_model() -> None:
    header = read_header(DEMO)
    assert header.architecture == "qwen3"
    assert header.n_vocab == 1059
    assert header.number("block_count") > 0
    assert 0.9 * DEMO.stat().st_size < header.tensor_bytes < DEMO.stat().st_size


@pytest.mark.parametrize("values", [DENSE, HYBRID])
def test_what_a_header_says(path: Path, values: dict[str, Any]) -> None:
    header = read(path, gguf(values))
    assert header.architecture == values["general.architecture"]
    assert (header.n_vocab, header.n_ctx_train, header.tensor_bytes) == (3, 2048, TENSOR_BYTES)
    assert header.values.keys() == values.keys()
    assert header.number("attention.head_count_kv") == 2
    assert header.number("no.such.key", 7) == 7


def test_long_arrays_are_counted_and_passed_over(path: Path) -> None:
    tokens = [f"token {number}" for number in range(10_000)]
    more = {"x.scores": [0.5] * 5000, "tokenizer.ggml.tokens": tokens, "x.last": 9}
    header = read(path, gguf({**DENSE, **more}))
    assert header.lengths == {"tokenizer.ggml.tokens": 10_000, "x.scores": 5000}
    assert "x.scores" not in header.values
    assert header.values["x.last"] == 9


def test_header_longer_than_the_first_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = gguf({**DENSE, "x.words": ["word"] * 10_000})
    monkeypatch.setattr(file, "_HEADER_STEPS", (1000, 10_000_000))
    assert read(path, content).lengths["x.words"] == 10_000
    monkeypatch.setattr(file, "_HEADER_STEPS", (1000, 2000))
    assert "ends within its header" in refused(path, content)


def test_every_length_but_the_whole_is_refused(path: Path) -> None:
    content = gguf(HYBRID)
    for length in range(len(content)):  # the last tensor ends with the file
        words = refused(path, content[:length])
        assert "begins with" in words if length < 4 else "it is not complete" in words, (length, words)
    read(path, content)
    read(path, content + b"more")


@settings(max_examples=1000)
@given(place=st.integers(0, len(gguf(HYBRID)) - 1), byte=st.integers(0, 255))
def test_any_changed_byte_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, place: int, byte: int) -> None:
    content = bytearray(gguf(HYBRID))
    content[place] = byte
    path = tmp_path_factory.getbasetemp() / f"changed-{os.getpid()}.gguf"
    path.write_bytes(content)
    with suppress(LoadError):
        header = read_header(path)
        memory_needs(header, cache_type_k="f16", cache_type_v="q8_0", flash_attention="auto", n_ubatch=512)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "begins with b''; a GGUF file begins with b'GGUF'"),
        (b"<!DOCTYPE html>", "begins with b'<!DO'; a GGUF file begins with b'GGUF'"),
        (b"GGUF\x01\0\0\0", "has GGUF version 1; allowed are 2 and 3"),
        (b"GGUF\0\0\0\x03" + bytes(64), "has GGUF version 50331648; allowed are 2 and 3"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 1), f"says it has {2**63} tensors; allowed are 1 to 1000000"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1), "says it has 0 tensors; allowed are 1 to 1000000"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 2**40), f"says it has {2**40} metadata values; allowed"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + struct.pack("<Q", 2**63), "ends within its header"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text("k") + struct.pack("<I", 99), "'k' has the unknown type 99"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text("k") + struct.pack("<IIQ", 9, 4, 2**62),
            "ends within its header",
        ),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(64),
            "'k' has the unknown type 9",
        ),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 1, 2) + (text("k") + struct.pack("<II", 4, 1)) * 2,
            "has the metadata key 'k' twice",
        ),
        (gguf({**DENSE, "general.alignment": 0}), "general.alignment is 0; allowed is a power of two"),
        (gguf({**DENSE, "general.alignment": 24}), "general.alignment is 24; allowed is a power of two"),
        (gguf({**DENSE, "general.alignment": "32"}), "general.alignment is '32'; allowed is a power of two"),
        (gguf(DENSE, [("w", [2, 2, 2, 2, 2], F32)]), "says it has 5 dimensions of tensor 'w'; allowed are up to 4"),
        (gguf(DENSE, [("w", [64], 77)]), "tensor 'w' has the unknown type 77"),
        (gguf(DENSE, [("w", [33, 2], Q8_0)]), "tensor 'w' has the size [33, 2]; its rows come in blocks of 32"),
        (gguf(DENSE, [("w", [64, 0], F32)]), "tensor 'w' has the size [64, 0]"),
        (gguf(DENSE, data=b""), "but its tensors need"),
        (gguf(DENSE, data=bytes(500)), "it is not complete"),
    ],
)
def test_files_that_are_refused(path: Path, content: bytes, words: str) -> None:
    assert words in refused(path, content)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (changed(DENSE, general_architecture=""), "general.architecture is ''; allowed is the name of"),
        ({k: v for k, v in DENSE.items() if k != "general.architecture"}, "general.architecture is None; allowed"),
        ({**DENSE, "general.architecture": 5}, "general.architecture is 5; allowed"),
        ({**DENSE, "split.count": 2}, "split.count is 2; allowed is 1: merge the parts"),
        (changed(DENSE, tokenizer_ggml_tokens=None), "tokenizer.ggml.tokens is None; allowed is a list of the tokens"),
        (changed(DENSE, tokenizer_ggml_tokens=[]), "tokenizer.ggml.tokens is []; allowed is a list of the tokens"),
        (changed(DENSE, tokenizer_ggml_tokens=["a", "é", "", "", "é"]), "tokens has 'é' twice; allowed is once"),
        (changed(DENSE, tokenizer_ggml_tokens=[*map(str, range(5000)), "7"]), "tokens has '7' twice; allowed is once"),
        (changed(DENSE, block_count=None), "qwen3.block_count is None; allowed is an integer"),
        (changed(DENSE, block_count=0), "qwen3.block_count is 0; allowed is an integer from 1 to 512"),
        (changed(DENSE, block_count=513), "qwen3.block_count is 513; allowed is an integer from 1 to 512"),
        (changed(DENSE, block_count=2**40), f"qwen3.block_count is {2**40}; allowed"),
        (changed(DENSE, block_count="4"), "qwen3.block_count is '4'; allowed is an integer from 1 to 512"),
        (changed(DENSE, block_count=True), "qwen3.block_count is True; allowed is an integer from 1 to 512"),
        (changed(DENSE, context_length=0), "qwen3.context_length is 0; allowed"),
        (changed(DENSE, embedding_length=0), "qwen3.embedding_length is 0; allowed"),
        (changed(DENSE, attention_head_count=10**6), "qwen3.attention.head_count is 1000000; allowed"),
        (changed(DENSE, attention_head_count_kv=[2, 5000]), "qwen3.attention.head_count_kv is 5000; allowed"),
        (changed(DENSE, attention_head_count_kv=[2, 0]), "head_count_kv is [2, 0]; allowed is a list of 4 integers"),
        (changed(DENSE, attention_layer_norm_rms_epsilon=math.nan), "rms_epsilon is nan; allowed is a number of 0 or"),
        (changed(DENSE, attention_layer_norm_rms_epsilon=-1.0), "rms_epsilon is -1.0; allowed is a number of 0 or"),
        (changed(HYBRID, full_attention_interval=0), "qwen35.full_attention_interval is 0; allowed"),
        (changed(HYBRID, rope_dimension_count=0), "rope.dimension_count is 0; allowed is an even integer from 2 to 32"),
        (changed(HYBRID, rope_dimension_count=7), "rope.dimension_count is 7; allowed is an even integer from 2 to 32"),
        (changed(HYBRID, rope_dimension_count=34), "rope.dimension_count is 34; allowed is an even integer from 2"),
        (changed(HYBRID, rope_dimension_sections=[30, 2, 1, 0]), "dimension_sections is [30, 2, 1, 0]; allowed is a"),
        (changed(HYBRID, rope_dimension_count="8"), "rope.dimension_count is '8'; allowed is an integer from 0 to"),
        (
            changed(HYBRID, rope_dimension_sections=["2"]),
            "rope.dimension_sections is '2'; allowed is an integer from 0",
        ),
        (changed(HYBRID, ssm_inner_size=0), "qwen35.ssm.inner_size is 0; allowed is 64"),
        (changed(HYBRID, ssm_inner_size=65), "qwen35.ssm.inner_size is 65; allowed is 64"),
        (changed(HYBRID, ssm_state_size=10**6), "qwen35.ssm.state_size is 1000000; allowed"),
        ({**DENSE, "qwen3.expert_count": 8}, "expert_used_count is 0; allowed is an integer from 1 to 8"),
        ({**DENSE, "qwen3.expert_used_count": 1}, "expert_used_count is 1; allowed is an integer from 0 to 0"),
        ({**DENSE, "qwen3.expert_count": 2000}, "expert_count is 2000; allowed"),
    ],
)
def test_metadata_that_is_refused(path: Path, values: dict[str, Any], words: str) -> None:
    assert words in refused(path, gguf(values))


def test_what_is_no_file(tmp_path: Path) -> None:
    for path, words in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file or directory")):
        with pytest.raises(LoadError, match=rf"^{path}: can't be read: {words}$"):
            read_header(path)
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    with pytest.raises(LoadError, match="can't be read: it is no regular file"):
        read_header(tmp_path / "pipe")


def needs(path: Path, values: Mapping[str, Any], **options: Any) -> MemoryNeeds:
    usual = {"cache_type_k": "f16", "cache_type_v": "f16", "flash_attention": "auto", "n_ubatch": 512}
    return memory_needs(read(path, gguf(values)), **{**usual, **options})


def test_needs_of_a_dense_model(path: Path) -> None:
    usual = needs(path, DENSE)
    assert usual.weights == TENSOR_BYTES
    assert usual.per_token == 4 * 2 * (32 + 32) * 2
    assert usual.per_slot == 2 * 3 * 4
    assert usual.per_view_token == 512 * 2
    assert needs(path, DENSE, flash_attention="off").per_view_token == 512 * (6 + 4 * 4)
    assert needs(path, DENSE, n_ubatch=64).fixed * 8 == usual.fixed > 0


@pytest.mark.parametrize(
    ("key", "value", "numbers"),
    [("q8_0", "q8_0", 34 * 2), ("q8_0", "f16", 34 + 64), ("q4_0", "iq4_nl", 18 * 2), ("f32", "bf16", 128 + 64)],
)
def test_needs_by_cache_type(path: Path, key: str, value: str, numbers: int) -> None:
    assert needs(path, DENSE, cache_type_k=key, cache_type_v=value).per_token == 4 * 2 * numbers


def test_needs_of_a_hybrid(path: Path) -> None:
    hybrid = needs(path, HYBRID)
    assert hybrid.per_token == 2 * 2 * (32 + 32) * 2  # two of eight layers have attention
    state = 6 * 4 * (16 * 64 + 3 * (64 + 2 * 2 * 16))
    assert hybrid.per_slot == 2 * state + 2 * 3 * 4


def test_layers_of_a_hybrid(path: Path) -> None:
    usual = needs(path, HYBRID)
    assert needs(path, changed(HYBRID, full_attention_interval=None)) == usual  # llama.cpp's own default
    assert needs(path, changed(HYBRID, full_attention_interval=2)).per_token == 2 * usual.per_token
    listed = {**HYBRID, "qwen35.attention.recurrent_layers": [1, 1, 1, 1, 1, 1, 1, 0]}
    assert 2 * needs(path, listed).per_token == usual.per_token
    predicting = {**HYBRID, "qwen35.block_count": 9, "qwen35.nextn_predict_layers": 1}
    assert needs(path, predicting) == usual


def test_needs_by_layer_and_without_lengths(path: Path) -> None:
    by_layer = changed(DENSE, attention_head_count_kv=[2, 0, 4, 0])
    assert needs(path, by_layer).per_token == 6 * (32 + 32) * 2
    plain = changed(DENSE, attention_key_length=None, attention_value_length=None, attention_head_count_kv=None)
    assert needs(path, plain).per_token == 4 * 4 * (16 + 16) * 2
