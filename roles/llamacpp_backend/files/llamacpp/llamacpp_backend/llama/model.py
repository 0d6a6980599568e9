"""A loaded GGUF file: weights, vocabulary, tokenizer, metadata, chat template."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import llama_cpp as native
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from ..errors import EngineFailure, LoadError
from . import log
from .calls import brief


class Model:
    """Owns the weights. Contexts register themselves, since freeing the weights below one ends the process."""

    def __init__(self, path: Path, log_line: log.Log) -> None:
        """Load a file that `file.read_header` has found sound. Raises LoadError with llama.cpp's own words."""
        self.path = path
        self._contexts: set[int] = set()
        log.route(log_line)
        native.llama_backend_init()
        self.handle: Any = native.llama_model_load_from_file(str(path).encode(), native.llama_model_default_params())
        if not self.handle:
            raise LoadError(f"{path}: llama.cpp can't load it: {log.last_errors()}")
        # Its steps would need another one before them, or see what comes later: llama.cpp ends the process on both.
        if native.llama_model_has_encoder(self.handle) or native.llama_model_is_diffusion(self.handle):
            self.close()
            raise LoadError(f"{path}: is a model with an encoder or of diffusion; allowed are those that only decode")
        self.vocab: Any = native.llama_model_get_vocab(self.handle)
        self.n_vocab: int = native.llama_vocab_n_tokens(self.vocab)
        self.bytes: int = native.llama_model_size(self.handle)
        self.architecture = self.metadata("general.architecture") or "unknown"
        # Asked at every step, so kept: the ends (of a text, a turn, a message), a token's bytes once it has come up.
        self.end_tokens = frozenset(t for t in range(self.n_vocab) if brief.llama_vocab_is_eog(self.vocab, t))
        self.control_tokens = frozenset(t for t in range(self.n_vocab) if brief.llama_vocab_is_control(self.vocab, t))
        self._pieces: dict[int, bytes] = {}

    @property
    def can_rewind(self) -> bool:
        """Whether a sequence can be cut back to any length; recurrent layers keep only their last state."""
        recurrent = native.llama_model_is_recurrent(self.handle) or native.llama_model_is_hybrid(self.handle)
        return not recurrent

    @cached_property
    def suppressed_tokens(self) -> tuple[int, ...]:
        """Tokens that the model's file forbids in any answer."""
        count = ctypes.c_int32()
        tokens = native.llama_vocab_get_suppress_tokens(self.vocab, ctypes.byref(count))
        return tuple(tokens[: count.value]) if count.value else ()

    def metadata(self, key: str) -> str | None:
        """A metadata value as text, None when absent."""
        size = native.llama_model_meta_val_str(self.handle, key.encode(), None, 0)
        if size < 0:
            return None
        buffer = ctypes.create_string_buffer(size + 1)
        native.llama_model_meta_val_str(self.handle, key.encode(), buffer, size + 1)
        return buffer.value.decode("utf-8", "replace")

    @property
    def bos_text(self) -> str:
        """Text of the token the model puts before a prompt; empty when it puts none."""
        return self.begin_text if native.llama_vocab_get_add_bos(self.vocab) else ""

    @property
    def begin_text(self) -> str:
        """Text of the begin token, put before prompts or not: templates ask for it. Empty: there is none."""
        return self._text_if_any(native.llama_vocab_bos(self.vocab))

    @property
    def end_text(self) -> str:
        """Text of the end token, for templates. Empty: there is none."""
        return self._text_if_any(native.llama_vocab_eos(self.vocab))

    def chat_template(self, name: str | None = None) -> str | None:
        """Source of the model's own chat template (Jinja), or of the one with this name; None when it has none."""
        template = native.llama_model_chat_template(self.handle, name.encode() if name else None)
        return template.decode("utf-8", "replace") if template else None

    def chat_renderer(self, name: str | None = None) -> Callable[..., str]:
        """The model's own template, or the one with this name, in a sandbox.

        Raises LoadError when there is none or it can't be compiled.

        It is called with a list of messages, `tools=` a list of them or None, and by name what else the template asks
        for; it raises whatever the template raises.
        """
        template = self.chat_template(name)
        if template is None:
            raise LoadError("the model has no chat template")
        try:
            formatter = Jinja2ChatFormatter(template, eos_token=self.end_text, bos_token=self.begin_text)
        except Exception as error:  # jinja2 raises many kinds for a bad template
            raise LoadError(f"the model's chat template can't be compiled: {error}") from error
        return lambda messages, **names: str(formatter(messages=messages, **names).prompt)

    @cached_property
    def longest_token_bytes(self) -> int:
        """Most bytes of a token's name; its share of a text is never longer."""
        return max(len(brief.llama_vocab_get_text(self.vocab, token) or b"") for token in range(self.n_vocab))

    def control_strings(self) -> list[str]:
        """Texts that stand for control tokens."""
        return [self._token_name(token) for token in sorted(self.control_tokens)]

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of a text; see prompts.Tokenizer. May be called from any thread, during a decode too."""
        data = text.encode("utf-8")
        room = len(data) + 16
        for _ in range(2):  # a negative answer is the room that is needed
            buffer = (native.llama_token * room)()
            count = native.llama_tokenize(self.vocab, data, len(data), buffer, room, add_special, parse_special)
            if count >= 0:
                return list(buffer[:count])
            room = -count
        raise EngineFailure(f"llama.cpp could not tokenize a text of {len(data)} bytes")

    def token_bytes(self, token: int) -> bytes:
        """A token's share of the text; empty for control tokens."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._piece(token)
        return piece

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Refuse what is not in the vocabulary. Raises EngineFailure."""
        if tokens and not (min(tokens) >= 0 and max(tokens) < self.n_vocab):
            wrong = next(token for token in tokens if not 0 <= token < self.n_vocab)
            raise EngineFailure(f"token {wrong} is not in the vocabulary (0 to {self.n_vocab - 1})")

    def attach(self, context: object) -> None:
        """Note that a context uses the weights."""
        self._contexts.add(id(context))

    def detach(self, context: object) -> None:
        """Note that a context is gone."""
        self._contexts.discard(id(context))

    def close(self) -> None:
        """Free the weights. May be called again. Raises EngineFailure while contexts are open: they must go first."""
        if self._contexts:
            raise EngineFailure(f"the model has {len(self._contexts)} open contexts; they must be closed before it")
        if self.handle:
            native.llama_model_free(self.handle)
            self.handle = None

    def _piece(self, token: int) -> bytes:
        self.check_tokens((token,))
        room = 64
        for _ in range(2):
            buffer = ctypes.create_string_buffer(room)
            size = brief.llama_token_to_piece(self.vocab, token, buffer, room, 0, False)
            if size >= 0:
                return buffer.raw[:size]
            room = -size
        raise EngineFailure(f"llama.cpp could not give the text of token {token}")

    def _text_if_any(self, token: int) -> str:
        return self._token_name(token) if 0 <= token < self.n_vocab else ""

    def _token_name(self, token: int) -> str:
        self.check_tokens((token,))
        return bytes(brief.llama_vocab_get_text(self.vocab, token) or b"").decode("utf-8", "replace")
