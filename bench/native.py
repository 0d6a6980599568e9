"""llama_cpp as the product's venv has it, for what the benchmarks do with llama.cpp themselves."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

from bench.triton import site_packages

# Takes llama.cpp's log lines, and must live as long as llama.cpp does.
_SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)


def load() -> Any:
    """Import llama_cpp from the venv of the release, quiet. Our own packages go before the venv's."""
    path = str(site_packages())
    if path not in sys.path:
        sys.path.append(path)
    import llama_cpp

    llama_cpp.llama_log_set(_SILENT, ctypes.c_void_p(0))
    return llama_cpp


class Tokenizer:
    """A model's vocabulary alone."""

    def __init__(self, gguf: Path) -> None:
        self._native = load()
        parameters = self._native.llama_model_default_params()
        parameters.vocab_only = True
        self._model = self._native.llama_model_load_from_file(str(gguf).encode(), parameters)
        if not self._model:
            raise SystemExit(f"bench: llama.cpp can't load {gguf}")
        self._vocab = self._native.llama_model_get_vocab(self._model)

    def tokens(self, text: str) -> list[int]:
        """Cut text into tokens as a server does with a raw prompt; control tokens in it are text."""
        data = text.encode()
        capacity = len(data) + 8
        buffer = (self._native.llama_token * capacity)()
        count = self._native.llama_tokenize(self._vocab, data, len(data), buffer, capacity, True, False)
        return list(buffer[:count])
