"""A request as the client sent it -> a typed, checked request. Knows neither Triton nor llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .contract import CHAT_NAMES, PROMPT_NAMES, STREAM
from .errors import BadRequest
from .parameters import SAMPLING_NAMES, Sampling, parse_sampling


@dataclass(frozen=True)
class RawRequest:
    """Decoded inputs and request parameters by name, all of them values that JSON knows.

    `inputs`: tensors of shape [1] as the value itself, those of any length as a list; BYTES as text.
    """

    inputs: Mapping[str, Any]
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class GenerateRequest:
    """What to generate. `is_chat`: `text` is a JSON list of messages, else a raw prompt.

    `tools`, `chat_template_kwargs`: JSON text, "" where not given; only with a chat.
    """

    text: str
    is_chat: bool
    sampling: Sampling
    stream: bool
    tools: str = ""
    chat_template_kwargs: str = ""


def parse_generate(
    raw: RawRequest, defaults: Mapping[str, object], n_ctx: int, *, stream_default: bool
) -> GenerateRequest:
    """Check everything that can be checked without the model. Raises BadRequest."""
    name, text = _prompt(raw.inputs, raw.parameters)
    options = dict(raw.parameters)
    for key, value in raw.inputs.items():
        if key in PROMPT_NAMES:
            continue
        if key in options:
            raise BadRequest(f"{key} is given both as an input and as a parameter; give it once")
        options[key] = value
    stream = options.pop(STREAM, stream_default)
    if not isinstance(stream, bool):
        raise BadRequest(f"{STREAM} is {stream!r}; allowed are true and false")
    chat = {key: options.pop(key) for key in CHAT_NAMES if key in options}
    unknown = sorted(set(options) - set(SAMPLING_NAMES))
    if unknown:
        allowed = ", ".join((*SAMPLING_NAMES, *CHAT_NAMES, STREAM))
        raise BadRequest(f"unknown parameter '{unknown[0]}'; allowed are {allowed}")
    for key, value in chat.items():
        if not isinstance(value, str):
            raise BadRequest(f"{key} is {type(value).__name__}; allowed is JSON text in a string")
        if name != "messages":
            raise BadRequest(f"{key} is given with {name}; it belongs to messages, for which a template is used")
    return GenerateRequest(text, name == "messages", parse_sampling(options, defaults, n_ctx), stream, **chat)


def for_engine(raw: RawRequest) -> RawRequest:
    """The request that a front hands on to its engine: the client's, without `stream`, which it can't honour."""
    parameters = dict(raw.parameters)
    if parameters.pop(STREAM, False) is not False:
        raise BadRequest(
            f"{STREAM} is {raw.parameters[STREAM]!r}; this model answers once: allowed is false, "
            "for a stream call the model with _stream after its name (or generate_stream)"
        )
    return RawRequest(raw.inputs, parameters)


def decode_text(name: str, value: bytes) -> str:
    """The text of a BYTES element. Raises BadRequest for bytes that are not UTF-8."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRequest(
            f"{name} is not UTF-8: byte 0x{value[error.start]:02x} at position {error.start}; text must be UTF-8"
        ) from error


def _prompt(inputs: Mapping[str, Any], parameters: Mapping[str, Any]) -> tuple[str, str]:
    """Name and text of the one prompt input."""
    names = ", ".join(PROMPT_NAMES)
    misplaced = [name for name in PROMPT_NAMES if name in parameters]
    if misplaced:
        raise BadRequest(f"{misplaced[0]} is given as a parameter; it must be an input (BYTES, shape [1])")
    given = [name for name in PROMPT_NAMES if name in inputs]
    if len(given) != 1:
        what = f"{' and '.join(given)} are given" if given else "no prompt is given"
        raise BadRequest(f"{what}; give exactly one of {names}")
    text = inputs[given[0]]
    if not text:
        raise BadRequest(f"{given[0]} is empty; it must hold at least one character")
    return given[0], str(text)
