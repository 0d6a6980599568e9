"""Random-weight models are the same bytes for the same seed, in a shape that llama.cpp's loader asks for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "models" / "random_gguf.py"


def generate(path: Path, shape: str, seed: int = 0) -> bytes:
    command = [sys.executable, str(SCRIPT), "--shape", shape, "--output", str(path), "--seed", str(seed)]
    subprocess.run(command, check=True)
    return path.read_bytes()


@pytest.mark.parametrize("shape", ["tiny-dense", "tiny-qwen35"])
def test_same_seed_same_bytes(tmp_path: Path, shape: str) -> None:
    first = generate(tmp_path / "first.gguf", shape)
    assert generate(tmp_path / "second.gguf", shape) == first
    assert generate(tmp_path / "third.gguf", shape, seed=1) != first


def test_hybrid_has_attention_in_every_fourth_layer(tmp_path: Path) -> None:
    path = tmp_path / "hybrid.gguf"
    generate(path, "tiny-qwen35")
    reader = gguf.GGUFReader(path)
    assert reader.fields["general.architecture"].contents() == "qwen35"
    names = {tensor.name for tensor in reader.tensors}
    layers = range(reader.fields["qwen35.block_count"].contents())
    assert [layer for layer in layers if f"blk.{layer}.attn_q.weight" in names] == [3, 7]
    assert [layer for layer in layers if f"blk.{layer}.ssm_a" in names] == [0, 1, 2, 4, 5, 6]
