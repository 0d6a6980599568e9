"""A process of its own in which constraints are compiled and followed before the serving process gets them.

`python -m llamacpp_backend.constrain.trial MODEL`: loads the vocabulary of a GGUF file, then answers one JSON line on
its output for each JSON line on its input: {"kind", "text"} -> {"gbnf"} or {"error"}. It may die of what it is given,
by a signal when that takes too much CPU time; that is what it is for.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from ..errors import BadRequest
from .compiling import gbnf_of

CPU_SECONDS = 1.0  # for one constraint
MAX_TOKEN_SECONDS = 25e-6  # on average, to test a token at one place of a text; 1 or 2 millionths are usual
_STEPS = 8
_SAMPLE = 2048  # tokens that stand for the vocabulary where a part of a grammar is tried
_SPARE_BYTES = 512 * 2**20


def main(path: str) -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what native code prints must not stand among the answers
    try:
        vocabulary = Vocabulary(path)
    except Exception as error:  # whatever it is: the parent has no other way to learn of it
        print(json.dumps({"failed": str(error) or repr(error)}), file=answers, flush=True)
        return
    _limit_memory()
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        # Native code can't be interrupted but by a signal that ends the process.
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        try:
            gbnf, parts = gbnf_of(request["kind"], request["text"])
            vocabulary.follow(request["kind"], gbnf, parts)
            answer = {"gbnf": gbnf}
        except BadRequest as error:
            answer = {"error": str(error)}
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answer), file=answers, flush=True)


def _limit_memory() -> None:
    """Let the process grow by _SPARE_BYTES: one that wants more ends, and not the service."""
    with open("/proc/self/status", encoding="ascii") as status:
        data = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (data + _SPARE_BYTES, data + _SPARE_BYTES))


class Vocabulary:
    """The tokens of a model, and grammars that choose among them."""

    def __init__(self, path: str) -> None:
        # Imported here alone: this module is part of a package that must not load llama.cpp anywhere else.
        import llama_cpp as native

        self._native = native
        native.llama_backend_init()
        params = native.llama_model_default_params()
        params.vocab_only = True
        self._model = native.llama_model_load_from_file(path.encode(), params)
        if not self._model:
            raise RuntimeError(f"{path}: the vocabulary can't be loaded")
        self._vocab = native.llama_model_get_vocab(self._model)
        self._size: int = native.llama_vocab_n_tokens(self._vocab)
        # Control tokens are kept out of answers under a grammar, and end tokens end them.
        unwritten = (native.llama_vocab_is_eog, native.llama_vocab_is_control)
        tokens = [token for token in range(self._size) if not any(test(self._vocab, token) for test in unwritten)]
        # The longest ones cost most: each of their characters is a place where ways may part.
        by_length = sorted(tokens, key=self._length, reverse=True)
        spread = tokens[:: max(1, 2 * len(tokens) // _SAMPLE)]
        self._all = self._array(tokens)
        self._sample = self._array(sorted({*by_length[: _SAMPLE // 2], *spread}))

    def follow(self, kind: str, gbnf: str, parts: Sequence[str]) -> None:
        """Compile a grammar and follow it through a text from each of some rules.

        Raises BadRequest when it can't be compiled, leads nowhere or is slow. Always the same texts: the same grammar
        is always taken or always refused, but for the time it takes.
        """
        for part in parts:
            grammar = self._native.llama_sampler_init_grammar(self._vocab, gbnf.encode(), part.encode())
            if not grammar:
                raise BadRequest(f"{kind} makes a grammar that llama.cpp does not take")
            steps = self._walk(kind, grammar)
            if part == "root" and not steps and not self._allowed(kind, grammar, self._all):
                raise BadRequest(f"{kind} allows no token of the model's vocabulary to begin a text")
            self._native.llama_sampler_free(grammar)

    def _walk(self, kind: str, grammar: Any) -> int:
        """Follow one text; how many tokens it has come to have."""
        chance = random.Random(0)
        for step in range(_STEPS):
            allowed = self._allowed(kind, grammar, self._sample)
            if not allowed:
                return step
            self._native.llama_sampler_accept(grammar, chance.choice(allowed))
        return _STEPS

    def _allowed(self, kind: str, grammar: Any, blank: Any) -> list[int]:
        """Those of the tokens in `blank` that may come next. Raises BadRequest when that takes long to find out."""
        data = type(blank).from_buffer_copy(blank)
        array = self._native.llama_token_data_array(data=data, size=len(data), selected=-1, sorted=False)
        begin = time.process_time()
        self._native.llama_sampler_apply(grammar, ctypes.byref(array))
        took = (time.process_time() - begin) / len(data)
        if took > MAX_TOKEN_SECONDS:
            raise BadRequest(
                f"{kind} is too slow to follow: {took * 1e6:.0f} us to test one token; allowed are "
                f"{MAX_TOKEN_SECONDS * 1e6:.0f}"
            )
        return [candidate.id for candidate in data if candidate.logit == 0]

    def _array(self, tokens: Sequence[int]) -> Any:
        data = (self._native.llama_token_data * len(tokens))()
        for place, token in enumerate(tokens):
            data[place].id = token
        return data

    def _length(self, token: int) -> int:
        return len(self._native.llama_vocab_get_text(self._vocab, token) or b"")


if __name__ == "__main__":
    main(sys.argv[1])
