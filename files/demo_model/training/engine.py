"""llama.cpp as training needs it: its tokenizer, chat template, and greedy decoding with its gaps."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import llama_cpp
import numpy as np
from llama_cpp.llama_chat_format import Jinja2ChatFormatter


class Engine:
    """One loaded GGUF file with one context."""

    def __init__(self, path: Path, *, vocab_only: bool = False, n_batch: int = 512) -> None:
        self._llama = llama_cpp.Llama(
            str(path),
            vocab_only=vocab_only,
            n_ctx=2048,
            n_batch=n_batch,
            n_ubatch=n_batch,
            n_threads=2,
            n_threads_batch=2,
            logits_all=False,
            verbose=False,
        )
        self._vocab = llama_cpp.llama_model_get_vocab(self._llama.model)
        self._n_vocab = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self._n_batch = n_batch

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._llama.close()

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """Return the token ids of a text; with `special`, control tokens written in it are recognised."""
        return list(self._llama.tokenize(text.encode(), add_bos=True, special=special))

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the prompt the file's own chat template makes of the messages."""
        formatter = Jinja2ChatFormatter(
            template=self._llama.metadata["tokenizer.chat_template"], eos_token="", bos_token=""
        )
        return str(formatter(messages=list(messages)).prompt)

    def piece(self, tokens: Iterable[int]) -> bytes:
        """Return the bytes of the tokens; control tokens have none."""
        return bytes(self._llama.detokenize(list(tokens)))

    def greedy(self, prompt: Sequence[int], limit: int) -> tuple[list[int], int | None, float]:
        """Decode greedily from an empty context.

        Returns the tokens without the end token, the end token (None if `limit` tokens came without one),
        and the smallest gap between the best two logits over all steps, the end token's included.
        """
        memory = llama_cpp.llama_get_memory(self._llama.ctx)
        llama_cpp.llama_memory_clear(memory, True)
        tokens: list[int] = []
        gap = float("inf")
        fed = list(prompt)
        while True:
            for start in range(0, len(fed), self._n_batch):
                chunk = fed[start : start + self._n_batch]
                array = (llama_cpp.llama_token * len(chunk))(*chunk)
                code = llama_cpp.llama_decode(self._llama.ctx, llama_cpp.llama_batch_get_one(array, len(chunk)))
                if code != 0:
                    raise RuntimeError(f"llama_decode answered {code} for {len(chunk)} tokens")
            pointer = llama_cpp.llama_get_logits_ith(self._llama.ctx, -1)
            logits = np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (self._n_vocab,))
            second, best = np.sort(logits)[-2:]
            gap = min(gap, float(best - second))
            token = int(logits.argmax())
            if llama_cpp.llama_vocab_is_eog(self._vocab, token):
                return tokens, token, gap
            tokens.append(token)
            if len(tokens) == limit:
                return tokens, None, gap
            fed = [token]
