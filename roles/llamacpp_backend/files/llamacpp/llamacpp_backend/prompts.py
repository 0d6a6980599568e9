"""Checked request -> prompt tokens that fit the context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .chat import ChatTemplate, NoChatTemplate, Segment
from .errors import BadRequest
from .requests import GenerateRequest

JSON_ESCAPE_BYTES = 6  # a byte of text at its longest in JSON: \u0041
CHAT_OVERHEAD_BYTES = 65_536  # for what a template does not print


class Tokenizer(Protocol):
    """The part of a model that is needed here; see llama.model.Model."""

    @property
    def bos_text(self) -> str:
        """Text of the token that begins a sequence; empty when the model adds none."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids. `add_special`: with the begin token; `parse_special`: control strings become control tokens."""


class PromptEncoder:
    """Turns prompts and chats into token ids."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat: ChatTemplate | NoChatTemplate,
        n_ctx: int,
        longest_token_bytes: int | None = None,
    ) -> None:
        """`longest_token_bytes`: of the vocabulary, control tokens by their names; None: unknown."""
        self._tokenizer = tokenizer
        self._chat = chat
        self._n_ctx = n_ctx
        self._longest_token_bytes = longest_token_bytes

    def encode(self, request: GenerateRequest) -> list[int]:
        """Token ids, at least one, fewer than n_ctx. Raises BadRequest."""
        if request.is_chat:
            self._check_chat_bytes(request)
            segments = self._chat.prompt(request.text, request.tools, request.chat_template_kwargs)
        else:
            segments = [Segment(request.text, special=False)]
        self._check_bytes(segments)
        tokens: list[int] = []
        for index, segment in enumerate(segments):
            tokens += self._tokenizer.tokenize(
                segment.text,
                add_special=index == 0 and not self._has_bos(segment),
                parse_special=segment.special,
            )
        if not tokens:
            raise BadRequest("the prompt has no tokens; it must have at least one")
        if len(tokens) >= self._n_ctx:
            raise BadRequest(f"the prompt has {len(tokens)} tokens; allowed are at most {self._limit()}")
        return tokens

    def _check_bytes(self, segments: Sequence[Segment]) -> None:
        """Refuse what can't fit whatever its tokens are: to tokenize megabytes takes seconds. Raises BadRequest."""
        if self._longest_token_bytes is None:
            return
        size = sum(len(segment.text.encode("utf-8")) for segment in segments)
        most = (self._n_ctx - 1) * self._longest_token_bytes
        if size > most:
            raise BadRequest(
                f"the prompt has {size} bytes, and {self._n_ctx - 1} tokens have at most {most}; "
                f"allowed are at most {self._limit()}"
            )

    def _check_chat_bytes(self, request: GenerateRequest) -> None:
        """Refuse a chat that can't fit however it is rendered, before it is read. Raises BadRequest."""
        if self._longest_token_bytes is None:
            return
        size = sum(len(text.encode()) for text in (request.text, request.tools, request.chat_template_kwargs))
        most = (self._n_ctx - 1) * self._longest_token_bytes * JSON_ESCAPE_BYTES + CHAT_OVERHEAD_BYTES
        if size > most:
            raise BadRequest(
                f"messages, tools and chat_template_kwargs have {size} bytes together; allowed are at most {most}, "
                f"more than any chat of {self._n_ctx - 1} tokens has (n_ctx {self._n_ctx}, answer included)"
            )

    def _limit(self) -> str:
        return f"{self._n_ctx - 1}, since the context holds {self._n_ctx} tokens (n_ctx), answer included"

    def _has_bos(self, segment: Segment) -> bool:
        """Whether a template has written the begin token itself: two of them would spoil the answer."""
        bos = self._tokenizer.bos_text
        return segment.special and bool(bos) and segment.text.startswith(bos)
