"""Write a GGUF file of random weights, in a given shape, with the demo model's tokenizer and chat template.

Such a file answers nonsense, but it loads and computes like a trained one: it shows that an architecture
works, and what a size costs. The same shape and seed give the same bytes. Files are made where they are
needed, never committed.

    python tests/models/random_gguf.py --shape tiny-qwen35 --output /tmp/tiny-qwen35.gguf
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

DEMO_MODEL = Path(__file__).resolve().parents[2] / "files" / "demo_model" / "demo.gguf"
LOGIT_DEVIATION = 4.0  # spreads the logits enough for greedy choices that rarely depend on rounding
RESIDUAL_GAIN = 3.0  # lets the layers outweigh the token table, or the same token would come again and again


@dataclass(frozen=True)
class DeltaNet:
    """Sizes of the gated delta net layers of a hybrid; the names follow the GGUF metadata keys."""

    state_size: int
    group_count: int
    time_step_rank: int
    conv_kernel: int = 4
    full_attention_interval: int = 4

    @property
    def inner_size(self) -> int:
        """Width of the values of all heads together."""
        return self.state_size * self.time_step_rank

    @property
    def conv_width(self) -> int:
        """Width of queries, keys and values together: what the convolution runs over."""
        return 2 * self.state_size * self.group_count + self.inner_size


@dataclass(frozen=True)
class Shape:
    """Sizes of a model; the names follow the GGUF metadata keys. With `delta_net` it is a `qwen35` hybrid."""

    block_count: int
    embedding_length: int
    feed_forward_length: int
    head_count: int
    head_count_kv: int
    head_length: int
    delta_net: DeltaNet | None = None
    vocabulary: int = 0  # at least so many tokens: the tokenizer's own are followed by some that no text gives

    def is_recurrent(self, block: int) -> bool:
        return self.delta_net is not None and (block + 1) % self.delta_net.full_attention_interval != 0


SHAPES = {
    "tiny-dense": Shape(
        block_count=6,
        embedding_length=128,
        feed_forward_length=256,
        head_count=4,
        head_count_kv=2,
        head_length=32,
    ),
    "tiny-qwen35": Shape(
        block_count=8,
        embedding_length=128,
        feed_forward_length=256,
        head_count=4,
        head_count_kv=2,
        head_length=32,
        delta_net=DeltaNet(state_size=32, group_count=2, time_step_rank=4),
    ),
    "qwen3.5-0.8b": Shape(
        block_count=24,
        embedding_length=1024,
        feed_forward_length=3584,
        head_count=8,
        head_count_kv=2,
        head_length=256,
        delta_net=DeltaNet(state_size=128, group_count=16, time_step_rank=16),
        vocabulary=248_320,
    ),
    "qwen3-0.6b": Shape(
        block_count=28,
        embedding_length=1024,
        feed_forward_length=3072,
        head_count=16,
        head_count_kv=8,
        head_length=128,
        vocabulary=151_936,
    ),
}


def write(path: Path, shape: Shape, seed: int, tokenizer: Path = DEMO_MODEL) -> None:
    """Write the file: matrices as f16, vectors and convolutions as f32."""
    writer = gguf.GGUFWriter(path, "qwen3" if shape.delta_net is None else "qwen35")
    writer.add_name("random weights")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(4096)
    writer.add_embedding_length(shape.embedding_length)
    writer.add_block_count(shape.block_count)
    writer.add_feed_forward_length(shape.feed_forward_length)
    writer.add_head_count(shape.head_count)
    writer.add_head_count_kv(shape.head_count_kv)
    writer.add_key_length(shape.head_length)
    writer.add_value_length(shape.head_length)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000_000.0)
    if shape.delta_net is not None:
        _add_delta_net(writer, shape, shape.delta_net)
    vocabulary = _copy_tokenizer(writer, tokenizer, shape.vocabulary)
    random = np.random.default_rng(seed)
    for name, size in _tensors(shape, vocabulary):
        writer.add_tensor(name, _values(name, size, random))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_delta_net(writer: gguf.GGUFWriter, shape: Shape, net: DeltaNet) -> None:
    # A quarter of a head's half rotates, split over time, height and width, as Qwen3.5 does it for its 256.
    pairs = shape.head_length // 8
    third = math.ceil(pairs / 3)
    writer.add_rope_dimension_count(2 * pairs)
    writer.add_rope_dimension_sections([third, third, pairs - 2 * third, 0])
    writer.add_ssm_conv_kernel(net.conv_kernel)
    writer.add_ssm_state_size(net.state_size)
    writer.add_ssm_group_count(net.group_count)
    writer.add_ssm_time_step_rank(net.time_step_rank)
    writer.add_ssm_inner_size(net.inner_size)
    writer.add_full_attention_interval(net.full_attention_interval)


def _copy_tokenizer(writer: gguf.GGUFWriter, source: Path, at_least: int) -> int:
    """Copy the tokenizer's metadata, padded with more tokens; returns the number of tokens.

    No merge makes those, so text is cut into tokens as before. They have a text of their own, since a model with random
    weights answers hardly anything else, and an answer without text is none for those who look at streams.
    """
    tokens = 0
    for name, field in gguf.GGUFReader(source).fields.items():
        if not name.startswith("tokenizer."):
            continue
        content = field.contents()
        if name == gguf.Keys.Tokenizer.LIST:
            content += [f"<more{number}>" for number in range(len(content), at_least)]
            tokens = len(content)
        elif name == gguf.Keys.Tokenizer.TOKEN_TYPE:
            content += [int(gguf.TokenType.NORMAL)] * (at_least - len(content))
        is_array = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(name, content, field.types[0], field.types[-1] if is_array else None)
    if tokens == 0:
        raise ValueError(f"{source} holds no tokenizer (no {gguf.Keys.Tokenizer.LIST})")
    return tokens


def _tensors(shape: Shape, vocabulary: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield each tensor's name and size, in the order of the file; the token table is the output head too."""
    width, inner, head = shape.embedding_length, shape.feed_forward_length, shape.head_length
    queries, keys = shape.head_count * head, shape.head_count_kv * head
    yield "token_embd.weight", (vocabulary, width)
    for block in range(shape.block_count):
        sizes: dict[str, tuple[int, ...]] = {"attn_norm.weight": (width,)}
        net = shape.delta_net
        if net is not None and shape.is_recurrent(block):
            sizes |= {
                "attn_qkv.weight": (net.conv_width, width),
                "attn_gate.weight": (net.inner_size, width),
                "ssm_conv1d.weight": (net.conv_width, net.conv_kernel),
                "ssm_dt.bias": (net.time_step_rank,),
                "ssm_a": (net.time_step_rank,),
                "ssm_beta.weight": (net.time_step_rank, width),
                "ssm_alpha.weight": (net.time_step_rank, width),
                "ssm_norm.weight": (net.state_size,),
                "ssm_out.weight": (width, net.inner_size),
            }
        else:
            gates = 1 if net is None else 2  # qwen35 gates the output of attention: as many rows again
            sizes |= {
                "attn_q.weight": (gates * queries, width),
                "attn_k.weight": (keys, width),
                "attn_v.weight": (keys, width),
                "attn_output.weight": (width, queries),
                "attn_q_norm.weight": (head,),
                "attn_k_norm.weight": (head,),
            }
        sizes |= {
            "ffn_norm.weight" if net is None else "post_attention_norm.weight": (width,),
            "ffn_gate.weight": (inner, width),
            "ffn_up.weight": (inner, width),
            "ffn_down.weight": (width, inner),
        }
        for name, size in sizes.items():
            yield f"blk.{block}.{name}", size
    yield "output_norm.weight", (width,)


def _values(name: str, size: tuple[int, ...], random: np.random.Generator) -> npt.NDArray[np.floating[Any]]:
    values = random.standard_normal(size, dtype=np.float32)
    if name.endswith("norm.weight"):
        return 1 + values / 10
    if name.endswith("ssm_a"):
        return -np.exp(values)  # the rate of forgetting: negative, or states would grow without bound
    if name.endswith("ssm_conv1d.weight"):
        return values / math.sqrt(size[-1])
    if len(size) == 1:
        return values
    spread = 1.0
    if name.startswith("token_embd"):
        spread = LOGIT_DEVIATION
    elif name.endswith(("attn_output.weight", "ssm_out.weight", "ffn_down.weight")):
        spread = RESIDUAL_GAIN
    return (values * (spread / math.sqrt(size[-1]))).astype(np.float16)


def main() -> None:
    """Write one file, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", required=True, choices=sorted(SHAPES))
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    write(arguments.output, SHAPES[arguments.shape], arguments.seed)


if __name__ == "__main__":
    main()
