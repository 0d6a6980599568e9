"""Messages, tools and template arguments as clients write them (JSON text) -> checked values, in one form."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from .errors import BadRequest
from .rules import byte_size, shown

MAX_MESSAGES = 2048  # templates walk over all messages for each message
MAX_TOOLS = 256
MAX_KWARGS = 64
MAX_DEPTH = 64

# What the renderer itself gives a template: from a client they would change the prompt's frame.
RESERVED = frozenset(
    {
        "messages",
        "tools",
        "add_generation_prompt",
        "bos_token",
        "eos_token",
        "functions",
        "function_call",
        "tool_choice",
    }
    | {"raise_exception", "strftime_now", "self", "loop"}
)


def parse_messages(text: str) -> list[dict[str, Any]]:
    """A list of messages, each with a role and a content: text, or a list of text parts.

    The content of a message with tool_calls may be missing; arguments of tool calls become objects. Raises BadRequest
    that names the place.
    """
    allowed = 'a JSON list of objects such as {"role": "user", "content": "..."}'
    messages = _parse("messages", text, allowed)
    if not isinstance(messages, list) or not messages:
        raise BadRequest(f"messages is {_kind(messages)}; allowed is {allowed}")
    if len(messages) > MAX_MESSAGES:
        raise BadRequest(f"messages has {len(messages)} messages; allowed are at most {MAX_MESSAGES}")
    return [_message(f"messages[{index}]", message, allowed) for index, message in enumerate(messages)]


def parse_tools(text: str) -> list[dict[str, Any]] | None:
    """A list of tools; None for an empty one. Raises BadRequest that names the place."""
    allowed = 'a JSON list of objects such as {"type": "function", "function": {"name": "...", "parameters": {}}}'
    tools = _parse("tools", text, allowed)
    if not isinstance(tools, list):
        raise BadRequest(f"tools is {_kind(tools)}; allowed is {allowed}")
    if len(tools) > MAX_TOOLS:
        raise BadRequest(f"tools has {len(tools)} tools; allowed are at most {MAX_TOOLS}")
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRequest(f"tools[{index}] has no function with a name; allowed is {allowed}")
    return tools or None


def parse_kwargs(text: str) -> dict[str, Any]:
    """What else the template gets, by name. Raises BadRequest that names what is wrong."""
    allowed = 'a JSON object such as {"enable_thinking": false}'
    kwargs = _parse("chat_template_kwargs", text, allowed)
    if not isinstance(kwargs, dict):
        raise BadRequest(f"chat_template_kwargs is {_kind(kwargs)}; allowed is {allowed}")
    if len(kwargs) > MAX_KWARGS:
        raise BadRequest(f"chat_template_kwargs has {len(kwargs)} names; allowed are at most {MAX_KWARGS}")
    for name in kwargs:
        if name in RESERVED or not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_]{0,63}", name):
            raise BadRequest(
                f"chat_template_kwargs has the name {shown(name)}; allowed are names of letters, digits and _ "
                f"that begin with a letter, without {', '.join(sorted(RESERVED))}"
            )
    return kwargs


def _message(place: str, message: Any, allowed: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise BadRequest(f"{place} is {_kind(message)}; allowed is {allowed}")
    role = message.get("role")
    if not isinstance(role, str):
        raise BadRequest(f"{place}.role is {_kind(role)}; allowed is a string such as 'user'")
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", role):  # templates build control tokens from it
        raise BadRequest(f"{place}.role is {shown(role)}; allowed are up to 64 letters, digits, _ and -")
    calls = message.get("tool_calls")
    checked = {key: value for key, value in message.items() if key != "tool_calls" or value}
    if calls:
        checked["tool_calls"] = _tool_calls(f"{place}.tool_calls", calls)
    content = message.get("content")
    if content is None and calls:
        content = ""
    if not isinstance(content, (str, list)):
        raise BadRequest(f"{place}.content is {_kind(content)}; allowed is a string or a list of parts")
    if isinstance(content, list):
        for index, part in enumerate(content):
            _check_part(f"{place}.content[{index}]", part)
    return {**checked, "content": content}


def _check_part(place: str, part: Any) -> None:
    allowed = 'an object such as {"type": "text", "text": "..."}'
    if not isinstance(part, dict):
        raise BadRequest(f"{place} is {_kind(part)}; allowed is {allowed}")
    if part.get("type") != "text":
        raise BadRequest(f"{place}.type is {shown(part.get('type'))}; allowed is 'text'")
    if not isinstance(part.get("text"), str):
        raise BadRequest(f"{place}.text is {_kind(part.get('text'))}; allowed is a string")


def _tool_calls(place: str, calls: Any) -> list[dict[str, Any]]:
    """Tool calls with their arguments as objects: clients send them as JSON text, templates want objects."""
    allowed = 'a list of objects such as {"type": "function", "function": {"name": "...", "arguments": "{}"}}'
    if not isinstance(calls, list):
        raise BadRequest(f"{place} is {_kind(calls)}; allowed is {allowed}")
    result = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRequest(f"{place}[{index}] has no function with a name; allowed is {allowed}")
        where = f"{place}[{index}].function.arguments"
        arguments = function.get("arguments", {})
        if isinstance(arguments, str):
            arguments = _parse(where, arguments, "JSON text of an object") if arguments else {}
        if not isinstance(arguments, dict):
            raise BadRequest(f"{where} is {_kind(arguments)}; allowed is JSON text of an object")
        result.append({**call, "function": {**function, "arguments": arguments}})
    return result


def _parse(name: str, text: str, allowed: str) -> Any:
    """The value of JSON text that a template and a message can be made of. Raises BadRequest."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
        byte_size(name, json.dumps(value, ensure_ascii=False))  # of a half neither a prompt nor a message can be made
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{name} is not JSON ({error}); allowed is {allowed}") from error
    if _deeper_than(value, MAX_DEPTH):
        raise BadRequest(f"{name} is nested more than {MAX_DEPTH} deep; allowed are at most {MAX_DEPTH}")
    return value


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON value")


def _deeper_than(value: Any, depth: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(depth == 0 or _deeper_than(item, depth - 1) for item in inner)


def _kind(value: Any) -> str:
    """What a JSON value is, for messages."""
    if value is None:
        return "missing or null"
    if value == []:
        return "an empty list"
    return {str: "a string", bool: "a boolean", dict: "an object", list: "a list"}.get(type(value), "a number")
