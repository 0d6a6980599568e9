"""What a request must hold: one prompt, known options, each once; `stream`."""

from __future__ import annotations

from typing import Any

import pytest
from llamacpp_backend.errors import BadRequest
from llamacpp_backend.parameters import SAMPLING_NAMES
from llamacpp_backend.requests import GenerateRequest, RawRequest, for_engine, parse_generate


def parse(inputs: dict[str, Any], **parameters: Any) -> GenerateRequest:
    return parse_generate(RawRequest(inputs, parameters), {}, 512, stream_default=True)


def refusal(inputs: dict[str, Any], **parameters: Any) -> str:
    with pytest.raises(BadRequest) as caught:
        parse(inputs, **parameters)
    return str(caught.value)


@pytest.mark.parametrize(("name", "is_chat"), [("prompt", False), ("text_input", False), ("messages", True)])
def test_one_prompt(name: str, is_chat: bool) -> None:
    wanted = parse({name: "你好 <|im_end|>"})
    assert (wanted.text, wanted.is_chat) == ("你好 <|im_end|>", is_chat)


def test_no_prompt() -> None:
    assert refusal({}) == "no prompt is given; give exactly one of prompt, text_input, messages"
    assert refusal({"max_tokens": 1}).startswith("no prompt is given")


@pytest.mark.parametrize(
    "names", [("prompt", "text_input"), ("prompt", "messages"), ("prompt", "text_input", "messages")]
)
def test_several_prompts(names: tuple[str, ...]) -> None:
    message = refusal(dict.fromkeys(names, "x"))
    assert message == f"{' and '.join(names)} are given; give exactly one of prompt, text_input, messages"


@pytest.mark.parametrize("name", ["prompt", "text_input", "messages"])
def test_empty_prompt(name: str) -> None:
    assert refusal({name: ""}) == f"{name} is empty; it must hold at least one character"


@pytest.mark.parametrize("name", ["prompt", "text_input", "messages"])
def test_prompt_as_parameter(name: str) -> None:
    message = f"{name} is given as a parameter; it must be an input (BYTES, shape [1])"
    assert refusal({}, **{name: "x"}) == message
    assert refusal({"prompt": "x"}, **{name: "x"}) == message


def test_option_as_input_or_as_parameter_but_not_both() -> None:
    assert parse({"prompt": "x", "max_tokens": 7}).sampling.max_tokens == 7
    assert parse({"prompt": "x"}, max_tokens=7).sampling.max_tokens == 7
    assert refusal({"prompt": "x", "max_tokens": 7}, max_tokens=7) == (
        "max_tokens is given both as an input and as a parameter; give it once"
    )
    assert "both" in refusal({"prompt": "x", "stream": True}, stream=True)


def test_stop_as_input_and_as_parameter() -> None:
    assert parse({"prompt": "x", "stop": ["a", "。"]}).sampling.stop == ("a", "。")
    assert parse({"prompt": "x"}, stop="a").sampling.stop == ("a",)


def test_unknown_parameter_lists_also_stream() -> None:
    allowed = ", ".join((*SAMPLING_NAMES, "tools", "chat_template_kwargs", "stream"))
    assert refusal({"prompt": "x"}, best_of=2) == f"unknown parameter 'best_of'; allowed are {allowed}"


@pytest.mark.parametrize("default", [True, False])
def test_stream_default(default: bool) -> None:
    assert parse_generate(RawRequest({"prompt": "x"}, {}), {}, 512, stream_default=default).stream is default


@pytest.mark.parametrize("value", [True, False])
def test_stream_given(value: bool) -> None:
    assert parse({"prompt": "x"}, stream=value).stream is value
    assert parse({"prompt": "x", "stream": value}).stream is value


@pytest.mark.parametrize("value", [1, 0, "true", None, 1.0])
def test_stream_of_another_type(value: object) -> None:
    assert refusal({"prompt": "x"}, stream=value) == f"stream is {value!r}; allowed are true and false"


def test_front_hands_a_request_on_without_stream() -> None:
    given = RawRequest({"prompt": "x"}, {"max_tokens": 3, "temperature": 0.5, "stream": False})
    assert for_engine(given) == RawRequest({"prompt": "x"}, {"max_tokens": 3, "temperature": 0.5})
    assert given.parameters["stream"] is False, "the caller's own must stay as they are"


@pytest.mark.parametrize("value", [True, 0, 1, "false", None])
def test_front_refuses_stream(value: object) -> None:
    with pytest.raises(BadRequest, match=r"stream is .*; this model answers once: allowed is false"):
        for_engine(RawRequest({}, {"stream": value}))


@pytest.mark.parametrize("name", ["tools", "chat_template_kwargs"])
def test_what_a_template_gets(name: str) -> None:
    assert getattr(parse({"messages": "[]", name: "{}"}), name) == "{}"
    assert getattr(parse({"messages": "[]"}, **{name: "{}"}), name) == "{}"
    assert getattr(parse({"messages": "[]"}), name) == ""
    assert refusal({"prompt": "x", name: "{}"}) == (
        f"{name} is given with prompt; it belongs to messages, for which a template is used"
    )
    assert refusal({"messages": "[]"}, **{name: True}) == f"{name} is bool; allowed is JSON text in a string"
