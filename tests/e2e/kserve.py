"""What the end-to-end tests send: KServe v2 over plain HTTP, so that status codes and bodies are seen as they are."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

TIMEOUT_SECONDS = 120


@dataclass(frozen=True)
class Answer:
    """An HTTP answer: status code and raw body."""

    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The text of Triton's `{"error": ...}`; empty when the body has none."""
        try:
            parsed = self.json()
        except ValueError:
            return ""
        return str(parsed.get("error", "")) if isinstance(parsed, dict) else ""

    def output(self, name: str) -> Any:
        """The first element of the output tensor `name`."""
        tensors = {tensor["name"]: tensor for tensor in self.json()["outputs"]}
        return tensors[name]["data"][0]


def call(url: str, body: dict[str, Any] | bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
    """GET `url`, or POST `body` to it. An error status is an answer too."""
    data = json.dumps(body, ensure_ascii=False).encode() if isinstance(body, dict) else body
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            return Answer(response.status, response.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.read())


def text_tensor(name: str, text: str) -> dict[str, Any]:
    """A BYTES[1] input."""
    return {"name": name, "shape": [1], "datatype": "BYTES", "data": [text]}


def infer(base: str, model: str, text: str, tensor: str = "prompt", **parameters: Any) -> Answer:
    """POST /v2/models/MODEL/infer with one text input and request parameters."""
    return call(f"{base}/v2/models/{model}/infer", {"inputs": [text_tensor(tensor, text)], "parameters": parameters})


def stream(base: str, model: str, **members: Any) -> Iterator[dict[str, Any]]:
    """POST /v2/models/MODEL/generate_stream and yield the JSON of each server-sent event."""
    request = urllib.request.Request(
        f"{base}/v2/models/{model}/generate_stream",
        data=json.dumps(members, ensure_ascii=False).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
        for line in response:
            if line.startswith(b"data:"):
                yield json.loads(line[5:])
