"""Chats with tools, parts and template arguments, rendered as llama.cpp's own server renders them.

Own small templates always, and those of real models where LLAMA_CPP_TEMPLATES names the directory
`vendor/llama.cpp/models/templates` of the wheel's unpacked sources.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from llamacpp_backend.chat import ChatTemplate

from bench.peers import llama_server
from tests.engine.test_llama_server_parity import SERVER, LlamaServer

if TYPE_CHECKING:
    from llamacpp_backend.llama.model import Model

DEMO = Path(__file__).resolve().parents[2] / "files" / "demo_model" / "demo.gguf"
TEMPLATES = os.environ.get("LLAMA_CPP_TEMPLATES")
SECONDS = 60

OWN = {
    "text": (
        "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content | trim }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "parts": (
        "{%- for message in messages %}{{ message.role }}: {% if message.content is string %}{{ message.content }}"
        "{% else %}{% for part in message.content %}[{{ part.text }}]{% endfor %}{% endif %}\n{% endfor %}"
    ),
    "tools": (
        "{%- if tools %}Tools: {{ tools | tojson }}\n{% endif %}{% for message in messages %}{{ message.role }}: "
        "{{ message.content }}{% for call in message.tool_calls or [] %} calls {{ call.function.name }} with "
        "{{ call.function.arguments | tojson }}{% endfor %}\n{% endfor %}"
        "{%- if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    ),
}
REAL = [
    "GLM-4.6",
    "LFM2-8B-A1B",
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
    "Qwen3.5-4B",
    "ibm-granite-granite-4.0",
    "microsoft-Phi-3.5-mini-instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
]
WITHOUT_TOOLS = ("text", "parts", "microsoft-Phi-3.5-mini-instruct")

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers, < é 😀 >.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        },
    }
]
CALL = {"id": "call00001", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": [2, "é"]}'}}
CHATS: dict[str, dict[str, Any]] = {
    "one turn": {"messages": [{"role": "user", "content": "Hello"}]},
    "several turns": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "你好 😀"},
            {"role": "assistant", "content": "你好！"},
            {"role": "user", "content": "two\nlines and a space "},
        ]
    },
    "parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    },
    "no thinking": {
        "messages": [{"role": "user", "content": "Hello"}],
        "chat_template_kwargs": {"enable_thinking": False},
    },
    "tools": {"messages": [{"role": "user", "content": "Hello"}], "tools": TOOLS},
    "a call": {
        "messages": [
            {"role": "user", "content": "What is 1 + 2?"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call00001", "name": "add", "content": "3"},
            {"role": "assistant", "content": "3."},
            {"role": "user", "content": "Thanks"},
        ],
        "tools": TOOLS,
    },
}


@contextmanager
def serving(template: Path, log: Path) -> Iterator[LlamaServer]:
    """llama-server with the demo model and another template."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = llama_server.command(DEMO, port, slots=1, n_ctx=512, threads=1, cache_mib=0)
    with log.open("w") as out:
        process = subprocess.Popen(
            [str(SERVER), *command[1:], "--chat-template-file", str(template)], stdout=out, stderr=subprocess.STDOUT
        )
    try:
        peer = LlamaServer(port)
        give_up = time.monotonic() + SECONDS
        while True:
            try:
                peer.call("/health")
                break
            except (urllib.error.URLError, ConnectionError):
                assert process.poll() is None, log.read_text(errors="replace")[-2000:]
                assert time.monotonic() < give_up, "llama-server does not answer"
                time.sleep(0.05)
        yield peer
    finally:
        process.terminate()
        process.wait(SECONDS)


def ours(source: str, model: Model, chat: dict[str, Any]) -> str:
    """The chat as the product renders it by another template."""
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter

    formatter = Jinja2ChatFormatter(source, eos_token=model.end_text, bos_token=model.begin_text)
    template = ChatTemplate(
        lambda messages, **names: str(formatter(messages=messages, **names).prompt), model.control_strings()
    )
    texts = [json.dumps(chat[name]) if name in chat else "" for name in ("messages", "tools", "chat_template_kwargs")]
    return "".join(segment.text for segment in template.prompt(*texts))


@pytest.mark.parametrize("name", [*OWN, *REAL])
def test_rendered_as_llama_server_does(name: str, llama: dict[str, Model], tmp_path: Path) -> None:
    if not SERVER.exists():
        pytest.skip(f"llama-server is not built ({SERVER}): `python -m bench.peers.llama_server` builds it, in minutes")
    if name in OWN:
        path = tmp_path / "template.jinja"
        path.write_text(OWN[name], encoding="utf-8")
    elif TEMPLATES is None:
        pytest.skip("LLAMA_CPP_TEMPLATES does not name the directory of real models' templates")
    else:
        path = Path(TEMPLATES) / f"{name}.jinja"
    with serving(path, tmp_path / "log") as peer:
        for chat_name, chat in CHATS.items():
            if "tools" in chat and name in WITHOUT_TOOLS:
                continue  # refused by ours; llama-server leaves the tools out without a word
            rendered = peer.call("/apply-template", chat)["prompt"]
            assert ours(path.read_text(encoding="utf-8"), llama["demo"], chat) == rendered, chat_name
