"""Chat messages -> prompt, by the model's own template.

Text that a client wrote never becomes a control token: each control string in messages, tools and template arguments
is replaced by a placeholder before the template runs, and comes back as a segment of its own that is tokenized as
plain text.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .chat_input import parse_kwargs, parse_messages, parse_tools
from .errors import BadRequest

# (messages, tools=..., and by name what else the template asks for) -> prompt; raises whatever the template raises.
Render = Callable[..., str]

# Of messages, tools and template arguments together: reading and rendering can't be interrupted, and while they hold
# the interpreter no answer of the model gets on.
MAX_CHAT_BYTES = 2**20
MAX_CHAT_MARKS = 65_536  # brackets, braces and colons: what JSON values are made of


@dataclass(frozen=True)
class Segment:
    """A stretch of a prompt; `special`: control strings in it are control tokens."""

    text: str
    special: bool


class ChatTemplate:
    """The model's template, and the one it has for chats with tools, if any."""

    def __init__(self, render: Render, control_strings: Iterable[str], render_with_tools: Render | None = None) -> None:
        self._plain = _Adapted(render)
        self._with_tools = _Adapted(render_with_tools) if render_with_tools else self._plain
        longest_first = sorted((text for text in control_strings if text), key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def prompt(self, messages_text: str, tools_text: str = "", kwargs_text: str = "") -> list[Segment]:
        """Render OpenAI-style messages and tools and the template's arguments, each given as JSON text.

        Empty `tools_text`, `kwargs_text`: none. Raises BadRequest.
        """
        size = sum(len(text.encode("utf-8", "replace")) for text in (messages_text, tools_text, kwargs_text))
        if size > MAX_CHAT_BYTES:
            raise BadRequest(
                f"messages, tools and chat_template_kwargs have {size} bytes together; "
                f"allowed are at most {MAX_CHAT_BYTES}"
            )
        marks = sum(text.count(mark) for text in (messages_text, tools_text, kwargs_text) for mark in "[{:")
        if marks > MAX_CHAT_MARKS:
            raise BadRequest(
                f"messages, tools and chat_template_kwargs have {marks} of the characters [ {{ : together; "
                f"allowed are at most {MAX_CHAT_MARKS}"
            )
        messages = parse_messages(messages_text)
        tools = parse_tools(tools_text) if tools_text else None
        kwargs = parse_kwargs(kwargs_text) if kwargs_text else {}
        template = self._with_tools if tools else self._plain
        if tools and not template.takes_tools:
            raise BadRequest("tools are given, and the model's chat template has no place for them; allowed is none")
        guard = _Guard(self._control)
        for index, message in enumerate(messages):
            guard.check_parts(f"messages[{index}].content", message["content"])
        try:
            rendered = template.render(guard.hide(messages), guard.hide(tools), guard.hide(kwargs))
        except Exception as error:  # a template can raise anything
            raise BadRequest(f"the model's chat template refuses these messages: {str(error)[:500]}") from error
        return guard.split(rendered)


class NoChatTemplate:
    """Stands in for a model without a usable template."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def prompt(self, messages_text: str, tools_text: str = "", kwargs_text: str = "") -> list[Segment]:
        """Raise BadRequest."""
        raise BadRequest(f"messages can't be used: {self._reason}; allowed are prompt and text_input")


class _Adapted:
    """A template, and messages in the form that it understands. Templates differ; a probe tells what this one takes."""

    _MARK = "probe5b1d"

    def __init__(self, render: Render) -> None:
        self._render = render
        user = {"role": "user", "content": self._MARK}
        text = self._probe([user])
        parts = self._probe([{**user, "content": [{"type": "text", "text": self._MARK}]}])
        # A template that does not know parts prints them as they stand in Python.
        takes_parts = self._MARK in parts and "'type'" not in parts and '"type"' not in parts
        takes_text = self._MARK in text
        self._joins_parts = not takes_parts
        self._makes_parts = takes_parts and not takes_text
        arguments = {"argument": self._MARK}
        self._objects = self._MARK in self._probe(self._call(arguments)) or not self._probe(
            self._call(json.dumps(arguments))
        )
        tool = {"type": "function", "function": {"name": self._MARK, "description": "", "parameters": {}}}
        with_tools = self._probe([{**user, "content": "x"}], [tool])
        self.takes_tools = self._MARK in with_tools or not with_tools  # a probe that is refused tells nothing

    def render(self, messages: Iterable[Mapping[str, Any]], tools: Any, kwargs: Mapping[str, Any]) -> str:
        """The prompt; raises whatever the template raises."""
        return self._render([self._adapted(message) for message in messages], tools=tools, **kwargs)

    def _adapted(self, message: Mapping[str, Any]) -> dict[str, Any]:
        content = message["content"]
        if self._joins_parts and isinstance(content, list):
            content = "\n".join(part["text"] for part in content)
        elif self._makes_parts and isinstance(content, str):
            content = [{"type": "text", "text": content}]
        adapted = {**message, "content": content}
        if not self._objects and "tool_calls" in message:
            adapted["tool_calls"] = [_with_text_arguments(call) for call in message["tool_calls"]]
        return adapted

    def _call(self, arguments: Any) -> list[dict[str, Any]]:
        function = {"name": "f", "arguments": arguments}
        call = {"id": "call00001", "type": "function", "function": function}
        user = {"role": "user", "content": "x"}
        return [user, {"role": "assistant", "content": "", "tool_calls": [call]}]

    def _probe(self, messages: list[dict[str, Any]], tools: Any = None) -> str:
        """What the template makes of it; nothing when it refuses."""
        try:
            return self._render(messages, tools=tools)
        except Exception:  # a template can raise anything
            return ""


def _with_text_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    """A tool call with its arguments as JSON text, for templates that put them down as they are."""
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}


class _Guard:
    """Hides control strings from one rendering. The placeholder can't be guessed, so a client can't forge one."""

    def __init__(self, control: re.Pattern[str] | None) -> None:
        self._control = control
        self._hidden: list[str] = []
        # Letters and digits alone: no filter of a template escapes or strips them.
        self._mark = f"hidden{secrets.token_hex(8)}"

    def check_parts(self, place: str, content: Any) -> None:
        """Refuse parts that are harmless one by one and a control string when a template puts them side by side."""
        if self._control and isinstance(content, list):
            texts = [part["text"] for part in content]
            if len(self._control.findall("".join(texts))) != sum(len(self._control.findall(text)) for text in texts):
                raise BadRequest(f"{place} has parts that make a control string together; allowed are whole ones")

    def hide(self, value: Any) -> Any:
        """The value with every control string in its texts replaced by a placeholder."""
        if isinstance(value, str):
            return self._control.sub(self._placeholder, value) if self._control else value
        if isinstance(value, list):
            return [self.hide(item) for item in value]
        if isinstance(value, dict):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        return value

    def split(self, rendered: str) -> list[Segment]:
        """The rendered prompt in segments, placeholders turned back into the client's text."""
        parts = re.split(f"{self._mark}n([0-9]+)n", rendered)
        segments = []
        for index, part in enumerate(parts):
            hidden = index % 2 == 1
            segments.append(Segment(self._hidden[int(part)] if hidden else part, special=not hidden))
        return [segment for segment in segments if segment.text]

    def _placeholder(self, match: re.Match[str]) -> str:
        self._hidden.append(match.group())
        return f"{self._mark}n{len(self._hidden) - 1}n"
