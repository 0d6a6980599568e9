"""Prompts and chats to tokens: one begin token, plain text kept plain, and what can't fit refused before it costs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llamacpp_backend.chat import ChatTemplate
from llamacpp_backend.errors import BadRequest
from llamacpp_backend.parameters import parse_sampling
from llamacpp_backend.prompts import PromptEncoder
from llamacpp_backend.requests import GenerateRequest

CONTROL = ["<|im_start|>", "<|im_end|>"]


def render(messages: Any, tools: Any = None, **names: Any) -> str:
    turns = [f"<|im_start|>{item['role']}\n{item['content']}<|im_end|>\n" for item in messages]
    return "".join(turns) + f"<|im_start|>assistant\n{names.get('prefix', '')}{tools or ''}"


class Tokenizer:
    """One token a character, with a begin token (1); notes how it was called."""

    bos_text = "<s>"

    def __init__(self) -> None:
        self.calls: list[tuple[str, bool, bool]] = []

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        self.calls.append((text, add_special, parse_special))
        return [1] * add_special + [ord(character) for character in text]


def encode(text: str, *, is_chat: bool = False, n_ctx: int = 100, render: Any = render) -> tuple[Tokenizer, list[int]]:
    tokenizer = Tokenizer()
    encoder = PromptEncoder(tokenizer, ChatTemplate(render, CONTROL), n_ctx)
    request = GenerateRequest(text, is_chat, parse_sampling({}, {}, n_ctx), stream=False)
    return tokenizer, encoder.encode(request)


def test_raw_prompt_is_plain_text_after_one_begin_token() -> None:
    tokenizer, tokens = encode("<|im_end|>")
    assert tokenizer.calls == [("<|im_end|>", True, False)]
    assert tokens[0] == 1


def test_chat_has_one_begin_token_and_keeps_user_text_plain() -> None:
    tokenizer, tokens = encode('[{"role": "user", "content": "a<|im_end|>"}]', is_chat=True)
    assert [call[1:] for call in tokenizer.calls] == [(True, True), (False, False), (False, True)]
    assert tokens.count(1) == 1


def test_begin_token_that_the_template_writes_is_not_doubled() -> None:
    tokenizer, _ = encode('[{"role": "user", "content": "a"}]', is_chat=True, render=lambda messages, tools: "<s>a")
    assert tokenizer.calls == [("<s>a", False, True)]
    tokenizer, _ = encode("<s>a")
    assert tokenizer.calls == [("<s>a", True, False)], "in a raw prompt it is text"


def test_longest_prompt() -> None:
    assert len(encode("x" * 98)[1]) == 99
    with pytest.raises(BadRequest, match=r"the prompt has 100 tokens; allowed are at most 99, since .* 100 tokens"):
        encode("x" * 99)


def test_chat_that_renders_to_nothing() -> None:
    tokenizer = Tokenizer()
    encoder = PromptEncoder(tokenizer, ChatTemplate(lambda messages, tools: "", CONTROL), 100)
    request = GenerateRequest('[{"role": "user", "content": "a"}]', True, parse_sampling({}, {}, 100), stream=False)
    with pytest.raises(BadRequest, match="the prompt has no tokens"):
        encoder.encode(request)


def test_tools_and_template_arguments_are_handed_on() -> None:
    tokenizer = Tokenizer()
    encoder = PromptEncoder(tokenizer, ChatTemplate(render, CONTROL), 1000)
    sampling = parse_sampling({}, {}, 1000)
    tools = '[{"type": "function", "function": {"name": "add"}}]'
    chat = '[{"role": "user", "content": "a"}]'
    encoder.encode(GenerateRequest(chat, True, sampling, False, tools, '{"prefix": "<|im_end|>"}'))
    assert "".join(call[0] for call in tokenizer.calls).endswith(
        "<|im_start|>assistant\n<|im_end|>[{'type': 'function', 'function': {'name': 'add'}}]"
    )
    assert ("<|im_end|>", False, False) in tokenizer.calls


def test_prompt_that_can_not_fit_is_not_tokenized() -> None:
    tokenizer = Tokenizer()
    encoder = PromptEncoder(tokenizer, ChatTemplate(render, CONTROL), 100, longest_token_bytes=4)

    def encode(text: str, is_chat: bool = False) -> None:
        encoder.encode(GenerateRequest(text, is_chat, parse_sampling({}, {}, 100), stream=False))

    with pytest.raises(BadRequest) as caught:
        encode("é" * 198 + "x")
    assert str(caught.value) == (
        "the prompt has 397 bytes, and 99 tokens have at most 396; allowed are at most 99, since the context holds "
        "100 tokens (n_ctx), answer included"
    )
    with pytest.raises(BadRequest, match="the prompt has 1031 bytes, and 99 tokens have at most 396"):
        encode('[{"role": "user", "content": "' + "x" * 981 + '"}]', is_chat=True)
    assert tokenizer.calls == []
    with pytest.raises(BadRequest, match="the prompt has 199 tokens"):
        encode("é" * 198)
    assert len(tokenizer.calls) == 1


def test_chat_that_cannot_fit_is_not_even_read() -> None:
    def never(*_: Any, **__: Any) -> str:
        raise AssertionError("the template ran")

    template = ChatTemplate(render, CONTROL)
    encoder = PromptEncoder(Tokenizer(), template, 100, longest_token_bytes=4)
    allowed = 99 * 4 * 6 + 65_536
    template._plain._render = never
    text = json.dumps([{"role": "user", "content": "x" * allowed}])
    with pytest.raises(BadRequest) as caught:
        encoder.encode(GenerateRequest(text, True, parse_sampling({}, {}, 100), stream=False))
    assert str(caught.value) == (
        f"messages, tools and chat_template_kwargs have {len(text)} bytes together; allowed are at most {allowed}, "
        "more than any chat of 99 tokens has (n_ctx 100, answer included)"
    )
