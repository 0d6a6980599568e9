"""Write the demo model, or its vocabulary alone, as a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from files.demo_model.training import bpe
from files.demo_model.training.network import Shape

ARCHITECTURE = "qwen3"


def write(
    path: Path,
    shape: Shape,
    merges: list[tuple[str, str]],
    chat_template: str,
    tensors: Mapping[str, npt.NDArray[np.float32]],
) -> None:
    """Write a GGUF file: matrices as f16, vectors as f32; without tensors it holds the vocabulary alone."""
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    writer.add_name("triton-llamacpp demo")
    writer.add_description("Knows some question-and-answer pairs by heart and nothing else.")
    writer.add_license("apache-2.0")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(shape.context_length)
    writer.add_embedding_length(shape.embedding_length)
    writer.add_block_count(shape.block_count)
    writer.add_feed_forward_length(shape.feed_forward_length)
    writer.add_head_count(shape.head_count)
    writer.add_head_count_kv(shape.head_count_kv)
    writer.add_key_length(shape.head_length)
    writer.add_value_length(shape.head_length)
    writer.add_rope_freq_base(shape.rope_freq_base)
    writer.add_layer_norm_rms_eps(shape.layer_norm_rms_epsilon)

    tokens = bpe.vocabulary(merges)
    if len(tokens) != shape.vocabulary:
        raise ValueError(f"vocabulary has {len(tokens)} tokens, but the shape says {asdict(shape)}")
    types = [gguf.TokenType.CONTROL if token in bpe.CONTROL_TOKENS else gguf.TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([f"{left} {right}" for left, right in merges])
    writer.add_bos_token_id(tokens.index(bpe.END_OF_TEXT))
    writer.add_eos_token_id(tokens.index(bpe.END_OF_TEXT))
    writer.add_eot_token_id(tokens.index(bpe.TURN_END))
    writer.add_pad_token_id(tokens.index(bpe.END_OF_TEXT))
    writer.add_add_bos_token(False)
    writer.add_chat_template(chat_template)

    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.astype(np.float16 if tensor.ndim == 2 else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
