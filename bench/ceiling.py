"""The raw ceiling: llama_decode called from Python on a batch of as many rows as there are clients, and nothing else.

    python -m bench.ceiling --gguf FILE --rows 4 --slots 8 --n-ctx 1536 --threads 2 --prompt 16 --steps 100

Prints JSON: `step_ms`, the median time of a decode step, and `tokens_per_s`, rows by that time.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

from bench import native


class Context:
    """A context as the engine makes it: `slots` sequences of `n_ctx` tokens each, logits for one row of each."""

    def __init__(self, gguf: Path, slots: int, n_ctx: int, threads: int) -> None:
        self._native: Any = native.load()
        self._native.llama_backend_init()
        model = self._native.llama_model_load_from_file(str(gguf).encode(), self._native.llama_model_default_params())
        if not model:
            raise SystemExit(f"bench: llama.cpp can't load {gguf}")
        self.n_vocab: int = self._native.llama_vocab_n_tokens(self._native.llama_model_get_vocab(model))
        parameters = self._native.llama_context_default_params()
        parameters.n_ctx = n_ctx * slots
        parameters.n_batch = parameters.n_ubatch = 512
        parameters.n_seq_max = parameters.n_outputs_max = slots
        parameters.n_threads = parameters.n_threads_batch = threads
        self._context = self._native.llama_init_from_model(model, parameters)
        if not self._context:
            raise SystemExit("bench: llama.cpp can't make the context")
        self._batch = self._native.llama_batch_init(512, 0, 1)

    def decode(self, rows: list[tuple[int, int, int, bool]]) -> float:
        """Decode rows of (token, position, sequence, wants logits); returns the seconds of the native calls."""
        for index, (token, position, sequence, wanted) in enumerate(rows):
            self._batch.token[index] = token
            self._batch.pos[index] = position
            self._batch.n_seq_id[index] = 1
            self._batch.seq_id[index][0] = sequence
            self._batch.logits[index] = wanted
        self._batch.n_tokens = len(rows)
        began = time.perf_counter()
        code = self._native.llama_decode(self._context, self._batch)
        self._native.llama_synchronize(self._context)
        seconds = time.perf_counter() - began
        if code != 0:
            raise SystemExit(f"bench: llama_decode answered {code}")
        return seconds


def main() -> None:
    """Measure one batch size, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf", type=Path, required=True)
    for name in ("--rows", "--slots", "--n-ctx", "--threads", "--prompt", "--steps"):
        parser.add_argument(name, type=int, required=True)
    options = parser.parse_args()
    context = Context(options.gguf, options.slots, options.n_ctx, options.threads)
    rng = random.Random(1)
    for sequence in range(options.rows):
        tokens = [rng.randrange(context.n_vocab) for _ in range(options.prompt)]
        context.decode([(token, at, sequence, at == options.prompt - 1) for at, token in enumerate(tokens)])
    times = []
    for step in range(options.steps):
        position = options.prompt + step
        times.append(context.decode([(rng.randrange(context.n_vocab), position, s, True) for s in range(options.rows)]))
    step_seconds = statistics.median(times)
    print(json.dumps({"step_ms": step_seconds * 1000, "tokens_per_s": options.rows / step_seconds}))


if __name__ == "__main__":
    main()
