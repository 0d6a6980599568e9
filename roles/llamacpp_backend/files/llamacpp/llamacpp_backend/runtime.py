"""llama.cpp behind a checked wrapper: one model, one context, one sequence. The only importer of llama_cpp.

A wrong argument makes llama.cpp abort the whole process, so every native call stands behind a check. Native handles
are owned here and freed once, samplers and context before the model.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llama_cpp as native
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from .errors import EngineFailure, LoadError
from .parameters import Sampling

Log = Callable[[str, str], None]  # level (debug, info, warning, error), line

_LEVELS = {1: "debug", 2: "info", 3: "warning", 4: "error"}
_CONTINUED = 5
_GGUF_VERSIONS = (2, 3)


class LogBridge:
    """Takes llama.cpp's log, joins its pieces to lines and hands them on; keeps the last errors for messages."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._level = "debug"
        self._line = ""
        self.errors: deque[str] = deque(maxlen=4)

    def write(self, level: int, text: bytes) -> None:
        """One call of llama.cpp's log callback."""
        if level != _CONTINUED:
            self._flush()
            self._level = _LEVELS.get(level, "debug")
        self._line += text.decode("utf-8", "replace")
        if self._line.endswith("\n"):
            self._flush()

    def _flush(self) -> None:
        line, self._line = self._line.strip(), ""
        if line:
            if self._level == "error":
                self.errors.append(line)
            self._log(self._level, line)


# llama.cpp's log callback while no model is open: it must never point to a collected object.
_discard_log: Any = native.llama_log_callback(lambda _level, _text, _data: None)


class Model:
    """A loaded GGUF file: weights, vocabulary, metadata."""

    def __init__(self, path: Path, log: Log) -> None:
        """Load the file. Raises LoadError with llama.cpp's own words."""
        check_file(path)
        self._bridge = LogBridge(log)

        # Kept in an attribute: the native side holds only a pointer.
        self._callback: Any = native.llama_log_callback(lambda level, text, _data: self._bridge.write(level, text))
        native.llama_log_set(self._callback, None)
        native.llama_backend_init()
        self.handle: Any = native.llama_model_load_from_file(str(path).encode(), native.llama_model_default_params())
        if not self.handle:
            native.llama_log_set(_discard_log, None)
            raise LoadError(f"{path}: llama.cpp can't load it: {self.last_errors()}")
        self._vocab: Any = native.llama_model_get_vocab(self.handle)
        self.n_vocab: int = native.llama_vocab_n_tokens(self._vocab)
        self.n_ctx_train: int = native.llama_model_n_ctx_train(self.handle)
        self.bytes: int = native.llama_model_size(self.handle)
        self.architecture = self.metadata("general.architecture") or "unknown"

    def last_errors(self) -> str:
        """The last error lines of llama.cpp."""
        return "; ".join(self._bridge.errors) or "it gave no reason"

    def metadata(self, key: str) -> str | None:
        """A metadata value as text, None when absent."""
        size = native.llama_model_meta_val_str(self.handle, key.encode(), None, 0)
        if size < 0:
            return None
        buffer = ctypes.create_string_buffer(size + 1)
        native.llama_model_meta_val_str(self.handle, key.encode(), buffer, size + 1)
        return buffer.value.decode("utf-8", "replace")

    def kv_bytes_per_token(self) -> int:
        """Size of one token in the KV cache, as f16, over all layers with attention."""

        def number(key: str, fallback: int) -> int:
            text = self.metadata(f"{self.architecture}.{key}") or ""
            return int(text) if text.isdigit() else fallback

        heads = max(1, native.llama_model_n_head(self.handle))
        head_size = native.llama_model_n_embd(self.handle) // heads
        sizes = number("attention.key_length", head_size) + number("attention.value_length", head_size)
        layers = int(native.llama_model_n_layer(self.handle))
        interval = max(1, number("full_attention_interval", 1))  # hybrids: only every n-th layer has attention
        kv_heads = number("attention.head_count_kv", heads)
        return -(-layers // interval) * kv_heads * sizes * 2

    @property
    def bos_text(self) -> str:
        """Text of the token the model puts before a prompt; empty when it puts none."""
        token = native.llama_vocab_bos(self._vocab)
        if not native.llama_vocab_get_add_bos(self._vocab) or not 0 <= token < self.n_vocab:
            return ""
        return self._token_name(token)

    def control_strings(self) -> list[str]:
        """Texts that stand for control tokens."""
        tokens = range(self.n_vocab)
        return [self._token_name(t) for t in tokens if native.llama_vocab_is_control(self._vocab, t)]

    def chat_renderer(self) -> Callable[[list[dict[str, Any]]], str]:
        """The model's own template, sandboxed. Raises LoadError when there is none or it can't be compiled."""
        template = native.llama_model_chat_template(self.handle, None)
        if not template:
            raise LoadError("the model has no chat template")
        names = {"bos_token": native.llama_vocab_bos(self._vocab), "eos_token": native.llama_vocab_eos(self._vocab)}
        texts = {k: self._token_name(t) if 0 <= t < self.n_vocab else "" for k, t in names.items()}
        try:
            formatter = Jinja2ChatFormatter(template.decode("utf-8"), **texts)
        except Exception as error:  # jinja2 raises many kinds for a bad template
            raise LoadError(f"the model's chat template can't be compiled: {error}") from error
        return lambda messages: str(formatter(messages=messages).prompt)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of a text; see prompts.Tokenizer."""
        data = text.encode("utf-8")
        room = len(data) + 16
        for _ in range(2):  # a negative answer is the room that is needed
            buffer = (native.llama_token * room)()
            count = native.llama_tokenize(self._vocab, data, len(data), buffer, room, add_special, parse_special)
            if count >= 0:
                return list(buffer[:count])
            room = -count
        raise EngineFailure(f"llama.cpp could not tokenize a text of {len(data)} bytes")

    def token_bytes(self, token: int) -> bytes:
        """A token's share of the text; empty for control tokens."""
        self._check_token(token)
        room = 64
        for _ in range(2):
            buffer = ctypes.create_string_buffer(room)
            size = native.llama_token_to_piece(self._vocab, token, buffer, room, 0, False)
            if size >= 0:
                return buffer.raw[:size]
            room = -size
        raise EngineFailure(f"llama.cpp could not give the text of token {token}")

    def is_end(self, token: int) -> bool:
        """Whether the token ends a generation: end of text, of a turn, of a message."""
        self._check_token(token)
        return bool(native.llama_vocab_is_eog(self._vocab, token))

    def close(self) -> None:
        """Free the weights; contexts must be closed before. May be called again."""
        if self.handle:
            native.llama_model_free(self.handle)
            self.handle = None
            native.llama_log_set(_discard_log, None)

    def _token_name(self, token: int) -> str:
        self._check_token(token)
        return bytes(native.llama_vocab_get_text(self._vocab, token) or b"").decode("utf-8", "replace")

    def _check_token(self, token: int) -> None:
        if not 0 <= token < self.n_vocab:
            raise EngineFailure(f"token {token} is not in the vocabulary (0 to {self.n_vocab - 1})")


class Runtime:
    """A context on a model: decodes and samples one sequence. Implements generator.Engine; one thread at a time."""

    def __init__(self, model: Model, *, n_ctx: int, n_batch: int, n_threads: int) -> None:
        """Make the context. Raises LoadError."""
        self._model = model
        self.n_ctx = n_ctx
        self.n_batch = min(n_batch, n_ctx)
        self._fed = 0
        params = native.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = self.n_batch
        params.n_ubatch = min(self.n_batch, params.n_ubatch)
        params.n_seq_max = 1
        params.n_outputs_max = 1  # 0 would reserve the logits of a whole batch
        params.n_threads = params.n_threads_batch = n_threads
        self._context: Any = native.llama_init_from_model(model.handle, params)
        if not self._context:
            raise LoadError(f"llama.cpp can't make a context of {n_ctx} tokens: {model.last_errors()}")
        self._memory: Any = native.llama_get_memory(self._context)
        self._batch = native.llama_batch_init(self.n_batch, 0, 1)

    def clear(self) -> None:
        """Forget the sequence. Raises EngineFailure after `close`."""
        if not self._context:
            raise EngineFailure("the model's context is closed")
        native.llama_memory_clear(self._memory, False)
        self._fed = 0

    def decode(self, tokens: Sequence[int], position: int) -> None:
        """Feed 1 to n_batch tokens at `position`, the number of tokens fed so far; logits for the last one."""
        count = len(tokens)
        if not 1 <= count <= self.n_batch:
            raise EngineFailure(f"a batch has {count} tokens; allowed are 1 to {self.n_batch}")
        if self._fed < 0 or position != self._fed or position + count > self.n_ctx:
            raise EngineFailure(f"tokens {position} to {position + count} do not follow {self._fed} in {self.n_ctx}")
        batch = self._batch
        for row, token in enumerate(tokens):
            if not 0 <= token < self._model.n_vocab:
                raise EngineFailure(f"token {token} is not in the vocabulary (0 to {self._model.n_vocab - 1})")
            batch.token[row] = token
            batch.pos[row] = position + row
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = 0
            batch.logits[row] = row == count - 1
        batch.n_tokens = count
        self._fed = -1  # until the step has succeeded nothing may follow and nothing may be sampled
        code = native.llama_decode(self._context, batch)
        if code != 0:
            raise EngineFailure(f"llama.cpp could not decode {count} tokens at {position} (code {code})")
        self._fed = position + count

    def sampler(self, sampling: Sampling, prompt: Sequence[int]) -> SamplerChain:
        """A sampler for one answer; it knows the prompt's tokens when penalties need them."""
        return SamplerChain(self, sampling, prompt)

    def sample(self, chain: Any) -> int:
        """Choose a token from the last decode's logits and tell the chain."""
        if self._fed < 1:
            raise EngineFailure("there is nothing to sample from: no tokens were decoded")
        return int(native.llama_sampler_sample(chain, self._context, -1))

    def warm_up(self) -> None:
        """Decode one token, so that the first request does not pay for page faults and set-up."""
        self.clear()
        self.decode([0], 0)
        native.llama_synchronize(self._context)
        self.clear()

    def token_bytes(self, token: int) -> bytes:
        """See Model.token_bytes."""
        return self._model.token_bytes(token)

    def is_end(self, token: int) -> bool:
        """See Model.is_end."""
        return self._model.is_end(token)

    def close(self) -> None:
        """Free batch and context. May be called again."""
        if self._context:
            native.llama_batch_free(self._batch)
            native.llama_free(self._context)
            self._context = None
            self._fed = -1

    @property
    def vocabulary_size(self) -> int:
        """Tokens the model knows."""
        return self._model.n_vocab


class SamplerChain:
    """llama.cpp's sampler chain for one answer. Implements generator.TokenSource."""

    def __init__(self, runtime: Runtime, sampling: Sampling, prompt: Sequence[int]) -> None:
        self._runtime = runtime
        self._chain: Any = native.llama_sampler_chain_init(native.llama_sampler_chain_default_params())
        try:
            self._fill(sampling, prompt)
        except EngineFailure:
            self.close()
            raise

    def next(self) -> int:
        """The next token. Raises EngineFailure after `close`."""
        if not self._chain:
            raise EngineFailure("the sampler is closed")
        return self._runtime.sample(self._chain)

    def close(self) -> None:
        """Free the chain and its samplers. May be called again."""
        if self._chain:
            native.llama_sampler_free(self._chain)
            self._chain = None

    def _fill(self, sampling: Sampling, prompt: Sequence[int]) -> None:
        """Add the samplers, the one that selects last."""
        runtime = self._runtime
        penalties = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
        if penalties != (1.0, 0.0, 0.0):
            # The window is allocated: the context's length is all that can be needed.
            self._add(native.llama_sampler_init_penalties(runtime.vocabulary_size, runtime.n_ctx, *penalties))
            for token in prompt:
                native.llama_sampler_accept(self._chain, token)
        if sampling.temperature == 0:
            self._add(native.llama_sampler_init_greedy())
            return
        if sampling.top_k > 0:  # first: it makes every later sampler cheap
            self._add(native.llama_sampler_init_top_k(sampling.top_k))
        if sampling.top_p < 1:
            self._add(native.llama_sampler_init_top_p(sampling.top_p, 1))
        if sampling.min_p > 0:
            self._add(native.llama_sampler_init_min_p(sampling.min_p, 1))
        self._add(native.llama_sampler_init_temp(sampling.temperature))
        seed = native.LLAMA_DEFAULT_SEED if sampling.seed is None else sampling.seed
        self._add(native.llama_sampler_init_dist(seed))

    def _add(self, sampler: Any) -> None:
        """Hand a sampler over to the chain, which then owns it."""
        if not sampler:
            raise EngineFailure("llama.cpp could not make a sampler")
        native.llama_sampler_chain_add(self._chain, sampler)


def check_file(path: Path) -> None:
    """Refuse what can't be a GGUF file before native code reads it. Raises LoadError."""
    try:
        with path.open("rb") as file:
            head = file.read(8)
    except OSError as error:
        raise LoadError(f"{path}: can't be read: {error.strerror}") from error
    if head[:4] != b"GGUF":
        raise LoadError(f"{path}: begins with {head[:4]!r}; a GGUF file begins with b'GGUF'")
    version = int.from_bytes(head[4:8], "little")
    if version not in _GGUF_VERSIONS:
        raise LoadError(f"{path}: has GGUF version {version}; allowed are {_GGUF_VERSIONS[0]} and {_GGUF_VERSIONS[1]}")
