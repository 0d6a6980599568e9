"""The demo model's chat template: what it renders, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

TEMPLATE = Path(__file__).resolve().parents[3] / "files" / "demo_model" / "chat_template.jinja"


class RefusedError(Exception):
    """What the template's raise_exception raises here."""


def refuse(message: str) -> NoReturn:
    raise RefusedError(message)


def render(messages: list[dict[str, Any]], *, add_generation_prompt: bool = True) -> str:
    # As llama-cpp-python sets up its environment.
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8").rstrip("\n"))
    return template.render(messages=messages, add_generation_prompt=add_generation_prompt, raise_exception=refuse)


def message(role: str, content: object = "x") -> dict[str, Any]:
    return {"role": role, "content": content}


def test_one_user_message() -> None:
    expected = "<|im_start|>user\n 你好\n<|im_end|>\n<|im_start|>assistant\n"
    assert render([message("user", " 你好\n")]) == expected


def test_conversation_with_system_message() -> None:
    roles = ["system", "user", "assistant", "user"]
    turns = "".join(f"<|im_start|>{role}\nx<|im_end|>\n" for role in roles)
    messages = [message(role) for role in roles]
    assert render(messages) == turns + "<|im_start|>assistant\n"
    assert render(messages, add_generation_prompt=False) == turns


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "No messages"),
        ([message("system")], "No user message"),
        ([message("assistant")], "must alternate"),
        ([message("user"), message("user")], "must alternate"),
        ([message("user"), message("assistant"), message("assistant")], "must alternate"),
        ([message("user"), message("system")], "must be the first"),
        ([message("tool")], "Unknown role: tool"),
        ([message("user", None)], "must be a string"),
        ([message("user", [{"type": "text", "text": "x"}])], "must be a string"),
    ],
)
def test_refused(messages: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        render(messages)
