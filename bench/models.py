"""The models that are served: the demo model, and random weights in the shapes of real ones, kept in the cache."""

from __future__ import annotations

import argparse
import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

from bench import cache, native
from bench.cache import REPOSITORY

GENERATOR = REPOSITORY / "tests" / "models" / "random_gguf.py"
DEMO = REPOSITORY / "files" / "demo_model" / "demo.gguf"
FILE_TYPES = {"f16": 1, "Q4_K_M": 15}  # llama.h, enum llama_ftype


@dataclass(frozen=True)
class Model:
    """A model by the name that results call it. Without a shape it is the demo model."""

    name: str
    shape: str = ""
    file_type: str = "f16"
    about: str = ""


MODELS = {
    model.name: model
    for model in (
        Model(
            "hybrid", "qwen3.5-0.8b", "Q4_K_M", "random weights in the shape of Qwen3.5-0.8B, 248,320 tokens, Q4_K_M"
        ),
        Model("dense", "qwen3-0.6b", "Q4_K_M", "random weights in the shape of Qwen3-0.6B, 151,936 tokens, Q4_K_M"),
        Model("tiny-hybrid", "tiny-qwen35", about="random weights, a qwen35 of 8 layers, f16"),
        Model("tiny-dense", "tiny-dense", about="random weights, a qwen3 of 6 layers, f16"),
        Model("demo", about="the demo model: trained, 1.8 million weights"),
    )
}


def file(model: Model) -> Path:
    """The model's GGUF; made when it is not in the cache (a minute or two and 4 GB of memory for the large ones)."""
    if not model.shape:
        return DEMO
    inputs = {
        "shape": model.shape,
        "file_type": model.file_type,
        "generator": hashlib.sha256(GENERATOR.read_bytes()).hexdigest(),
        "tokenizer": hashlib.sha256(DEMO.read_bytes()).hexdigest(),
    }
    return cache.made(f"model-{model.name}", inputs, lambda directory: _make(model, directory)) / "model.gguf"


def _make(model: Model, directory: Path) -> None:
    log = cache.SHELVES / f"model-{model.name}.log"
    whole = directory / "f16.gguf"
    cache.run_quietly([sys.executable, GENERATOR, "--shape", model.shape, "--output", whole], log)
    if model.file_type != "f16":
        module: list[str | Path] = [
            sys.executable,
            "-m",
            "bench.models",
            "--quantize",
            whole,
            "--to",
            directory / "model.gguf",
        ]
        cache.run_quietly([*module, "--file-type", model.file_type], log)
        whole.unlink()
    else:
        whole.rename(directory / "model.gguf")


def quantize(source: Path, target: Path, file_type: str) -> None:
    """Quantize a GGUF with two threads. Raises SystemExit when llama.cpp can't."""
    llama_cpp = native.load()
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = FILE_TYPES[file_type]
    parameters.nthread = 2
    if llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), parameters) != 0:
        raise SystemExit(f"bench: llama.cpp can't quantize {source} to {file_type}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Quantize one file, in a process of its own.")
    parser.add_argument("--quantize", type=Path, required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--file-type", choices=FILE_TYPES, required=True)
    options = parser.parse_args()
    quantize(options.quantize, options.to, options.file_type)
