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
from collections.abc import Iterator
from typing import Any

from ..errors import BadRequest
from .compiling import gbnf_of

CPU_SECONDS = 1.5  # for one constraint
MAX_STEP_SECONDS = 0.25  # to test the whole vocabulary at one place of a text
_WALKS = 2
_STEPS = 12
_WALK_SECONDS = 0.6
_SPARE_BYTES = 512 * 2**20


def main(path: str) -> None:
    """Serve until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what native code prints must not stand among the answers
    import llama_cpp as native  # the serving process must not load it twice, nor the front at all

    vocabulary = Vocabulary(native, path)
    _limit_memory()
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        # Native code can't be interrupted but by a signal that ends the process.
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        try:
            gbnf = gbnf_of(request["kind"], request["text"])
            vocabulary.follow(request["kind"], gbnf)
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

    def __init__(self, native: Any, path: str) -> None:
        self._native = native
        native.llama_backend_init()
        params = native.llama_model_default_params()
        params.vocab_only = True
        self._model = native.llama_model_load_from_file(path.encode(), params)
        if not self._model:
            raise SystemExit(f"{path}: the vocabulary can't be loaded")
        self._vocab = native.llama_model_get_vocab(self._model)
        self._size: int = native.llama_vocab_n_tokens(self._vocab)
        self._data = (native.llama_token_data * self._size)()
        self._blank = (native.llama_token_data * self._size)()
        for token in range(self._size):
            self._blank[token].id = token
        self._ends = [bool(native.llama_vocab_is_eog(self._vocab, token)) for token in range(self._size)]

    def follow(self, kind: str, gbnf: str) -> None:
        """Compile a grammar and follow it through a few texts. Raises BadRequest when it can't be or is slow."""
        grammar = self._native.llama_sampler_init_grammar(self._vocab, gbnf.encode(), b"root")
        if not grammar:
            raise BadRequest(f"{kind} makes a grammar that llama.cpp does not take")
        deadline = time.process_time() + _WALK_SECONDS
        for walk in range(_WALKS):
            self._native.llama_sampler_reset(grammar)
            # Always the same texts: the same grammar is always taken or always refused.
            chance = random.Random(walk)
            for step in range(_STEPS):
                begin = time.process_time()
                allowed = self._allowed(grammar)
                took = time.process_time() - begin
                if took > MAX_STEP_SECONDS:
                    raise BadRequest(
                        f"{kind} is too slow to follow: {took * 1000:.0f} ms to find the next tokens after {step}; "
                        f"allowed are {MAX_STEP_SECONDS * 1000:.0f}"
                    )
                if not allowed:
                    if step == 0:
                        raise BadRequest(f"{kind} allows no token of the model's vocabulary to begin a text")
                    break
                if time.process_time() > deadline:
                    break
                self._native.llama_sampler_accept(grammar, chance.choice(allowed))
        self._native.llama_sampler_free(grammar)

    def _allowed(self, grammar: Any) -> list[int]:
        """Tokens that may come next, without those that end a text."""
        ctypes.memmove(self._data, self._blank, ctypes.sizeof(self._data))
        array = self._native.llama_token_data_array(data=self._data, size=self._size, selected=-1, sorted=False)
        self._native.llama_sampler_apply(grammar, ctypes.byref(array))
        return [token for token in self._open(self._data) if not self._ends[token]]

    def _open(self, data: Any) -> Iterator[int]:
        """Tokens that were not refused."""
        import numpy as np

        floats = np.frombuffer(data, dtype=np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")]))
        yield from np.flatnonzero(floats["logit"] == 0).tolist()


if __name__ == "__main__":
    main(sys.argv[1])
