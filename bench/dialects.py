"""How each server is asked, and how its answers are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol


@dataclass(frozen=True)
class Wanted:
    """One request: greedy, exactly `max_tokens` tokens. With `system` it is a chat, `prompt` is the user's turn."""

    prompt: str
    prompt_tokens: int  # what the server must count; 0 when it is not known
    max_tokens: int
    stream: bool
    system: str | None = None


@dataclass(frozen=True)
class Piece:
    """What one event of an answer says; the counts come with the last."""

    text: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    error: str = ""


class Dialect(Protocol):
    """The API of one kind of server. `exact`: its answers have just max_tokens tokens."""

    exact: ClassVar[bool]

    def path(self, wanted: Wanted) -> str:
        """Where the request goes."""

    def body(self, wanted: Wanted) -> dict[str, Any]:
        """The request's JSON."""

    def read(self, data: Mapping[str, Any]) -> Piece:
        """Read one event of the answer, or the whole answer when it was not streamed."""


def chat(wanted: Wanted) -> list[dict[str, str]]:
    """The request as OpenAI messages."""
    return [{"role": "system", "content": wanted.system or ""}, {"role": "user", "content": wanted.prompt}]


class LlamaServerDialect:
    """llama-server: its own /completion, and /v1/chat/completions."""

    exact: ClassVar[bool] = True

    def path(self, wanted: Wanted) -> str:
        return "/completion" if wanted.system is None else "/v1/chat/completions"

    def body(self, wanted: Wanted) -> dict[str, Any]:
        common = {"temperature": 0, "ignore_eos": True, "cache_prompt": True, "stream": wanted.stream}
        if wanted.system is None:
            return {"prompt": wanted.prompt, "n_predict": wanted.max_tokens, **common}
        options = {"stream_options": {"include_usage": True}} if wanted.stream else {}
        return {"messages": chat(wanted), "max_tokens": wanted.max_tokens, **common, **options}

    def read(self, data: Mapping[str, Any]) -> Piece:
        if "error" in data:
            return Piece(error=json.dumps(data["error"]))
        if "choices" in data:
            return self._read_chat(data)
        text = str(data["content"])
        if not data["stop"]:
            return Piece(text)
        cached = data["timings"]["cache_n"]
        # tokens_evaluated counts the whole prompt, also what was cached.
        return Piece(text, data["tokens_evaluated"], data["tokens_predicted"], cached)

    @staticmethod
    def _read_chat(data: Mapping[str, Any]) -> Piece:
        text = ""
        for choice in data["choices"]:
            said = choice.get("delta") or choice.get("message") or {}
            text += (said.get("reasoning_content") or "") + (said.get("content") or "")
        usage = data.get("usage")
        if not usage:
            return Piece(text)
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        return Piece(text, usage["prompt_tokens"], usage["completion_tokens"], cached)


@dataclass(frozen=True)
class TritonDialect:
    """Our models behind Triton. `route_whole`: where whole answers are asked for, "generate" or "infer"."""

    exact: ClassVar[bool] = True
    model: str
    route_whole: str = "generate"

    def path(self, wanted: Wanted) -> str:
        if wanted.stream:
            return f"/v2/models/{self.model}_stream/generate_stream"
        return f"/v2/models/{self.model}/{self.route_whole}"

    def body(self, wanted: Wanted) -> dict[str, Any]:
        options = {"max_tokens": wanted.max_tokens, "temperature": 0, "ignore_eos": True}
        name = "text_input" if wanted.system is None else "messages"
        value = wanted.prompt if wanted.system is None else json.dumps(chat(wanted))
        if wanted.stream or self.route_whole == "generate":
            return {name: value, **options}
        return {"inputs": [{"name": name, "shape": [1], "datatype": "BYTES", "data": [value]}], "parameters": options}

    def read(self, data: Mapping[str, Any]) -> Piece:
        if "error" in data:
            return Piece(error=str(data["error"]))
        if "outputs" in data:
            data = {tensor["name"]: tensor["data"][0] for tensor in data["outputs"]}
        text = str(data.get("text_output", ""))
        if "completion_tokens" not in data:
            return Piece(text)
        return Piece(text, data["prompt_tokens"], data["completion_tokens"], data.get("cached_tokens"))


@dataclass(frozen=True)
class NaiveDialect:
    """The how-to's model.py. It heeds the model's end tokens, and goes on to the end of a character."""

    exact: ClassVar[bool] = False
    model: str

    def path(self, wanted: Wanted) -> str:
        return f"/v2/models/{self.model}/generate"

    def body(self, wanted: Wanted) -> dict[str, Any]:
        return {"prompt": wanted.prompt, "max_tokens": wanted.max_tokens, "temperature": 0.0}

    def read(self, data: Mapping[str, Any]) -> Piece:
        if "error" in data:
            return Piece(error=str(data["error"]))
        return Piece(str(data["generated_text"]), data["prompt_tokens"], data["completion_tokens"])
