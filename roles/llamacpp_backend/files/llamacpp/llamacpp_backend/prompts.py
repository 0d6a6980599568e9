"""Checked request -> prompt tokens that fit the context."""

from __future__ import annotations

from typing import Protocol

from .chat import ChatTemplate, NoChatTemplate, Segment
from .errors import BadRequest
from .requests import GenerateRequest


class Tokenizer(Protocol):
    """The part of the runtime that is needed here."""

    @property
    def bos_text(self) -> str:
        """Text of the token that begins a sequence; empty when the model adds none."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids. `add_special`: with the begin token; `parse_special`: control strings become control tokens."""


class PromptEncoder:
    """Turns prompts and chats into token ids."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatTemplate | NoChatTemplate, n_ctx: int) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self._n_ctx = n_ctx

    def encode(self, request: GenerateRequest) -> list[int]:
        """Token ids, at least one, fewer than n_ctx. Raises BadRequest."""
        segments = self._chat.prompt(request.text) if request.is_chat else [Segment(request.text, special=False)]
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
            raise BadRequest(
                f"the prompt has {len(tokens)} tokens; allowed are at most {self._n_ctx - 1}, "
                f"since the context holds {self._n_ctx} tokens (n_ctx), answer included"
            )
        return tokens

    def _has_bos(self, segment: Segment) -> bool:
        """Whether a template has written the begin token itself: two of them would spoil the answer."""
        bos = self._tokenizer.bos_text
        return segment.special and bool(bos) and segment.text.startswith(bos)
