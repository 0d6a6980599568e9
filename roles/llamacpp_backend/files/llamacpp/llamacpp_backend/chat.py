"""Chat messages -> prompt, by the model's own template.

Text that a user wrote never becomes a control token: each control string in a message is replaced by a placeholder
before the template runs, and comes back as a segment of its own that is tokenized as plain text.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .errors import BadRequest

Render = Callable[[list[dict[str, Any]]], str]


@dataclass(frozen=True)
class Segment:
    """A stretch of a prompt; `special`: control strings in it are control tokens."""

    text: str
    special: bool


class ChatTemplate:
    """The model's template. `render` takes messages and returns the prompt, or raises whatever the template raises."""

    def __init__(self, render: Render, control_strings: Iterable[str]) -> None:
        self._render = render
        longest_first = sorted((text for text in control_strings if text), key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def prompt(self, messages_text: str) -> list[Segment]:
        """Render OpenAI-style messages, given as JSON text. Raises BadRequest."""
        messages = parse_messages(messages_text)
        guard = _Guard(self._control)
        try:
            rendered = self._render([guard.hide(message) for message in messages])
        except Exception as error:  # a template can raise anything
            raise BadRequest(f"the model's chat template refuses these messages: {error}") from error
        return guard.split(rendered)


class NoChatTemplate:
    """Stands in for a model without a usable template."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def prompt(self, messages_text: str) -> list[Segment]:
        """Raise BadRequest."""
        raise BadRequest(f"messages can't be used: {self._reason}; allowed are prompt and text_input")


def parse_messages(text: str) -> list[dict[str, Any]]:
    """A JSON list of objects, each with a role and a content. Raises BadRequest that names the place."""
    allowed = 'a JSON list of objects such as {"role": "user", "content": "..."}'
    try:
        messages = json.loads(text)
        json.dumps(messages, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:  # neither a prompt nor an error message could be made of it
        half = ord(error.object[error.start])
        raise BadRequest(f"messages holds half of a surrogate pair (\\u{half:x}); text must be whole") from error
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"messages is not JSON ({error}); allowed is {allowed}") from error
    if not isinstance(messages, list) or not messages:
        raise BadRequest(f"messages is {_kind(messages)}; allowed is {allowed}")
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        if not isinstance(message, dict):
            raise BadRequest(f"{place} is {_kind(message)}; allowed is {allowed}")
        if not isinstance(message.get("role"), str):
            raise BadRequest(f"{place}.role is {_kind(message.get('role'))}; allowed is a string such as 'user'")
        if not isinstance(message.get("content"), (str, list)):
            raise BadRequest(
                f"{place}.content is {_kind(message.get('content'))}; allowed is a string or a list of parts"
            )
    return messages


class _Guard:
    """Hides control strings from one rendering. The placeholder can't be guessed, so a client can't forge one."""

    def __init__(self, control: re.Pattern[str] | None) -> None:
        self._control = control
        self._hidden: list[str] = []
        self._mark = secrets.token_hex(8)

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
        """The rendered prompt in segments, placeholders turned back into the user's text."""
        parts = re.split(f"\ue000{self._mark}:([0-9]+)\ue001", rendered)
        segments = []
        for index, part in enumerate(parts):
            hidden = index % 2 == 1
            segments.append(Segment(self._hidden[int(part)] if hidden else part, special=not hidden))
        return [segment for segment in segments if segment.text]

    def _placeholder(self, match: re.Match[str]) -> str:
        self._hidden.append(match.group())
        return f"\ue000{self._mark}:{len(self._hidden) - 1}\ue001"


def _kind(value: Any) -> str:
    """What a JSON value is, for messages."""
    if value is None:
        return "missing or null"
    if value == []:
        return "an empty list"
    return {str: "a string", bool: "a boolean", dict: "an object", list: "a list"}.get(type(value), "a number")
