"""Stands in for Triton's module of this name, which exists only inside a process that Triton has started.

It holds no more than `triton_adapter` uses, and refuses what Triton refuses where that matters: a response after the
final flag.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from llamacpp_backend import contract

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class TritonError:
    """An error with one of Triton's codes."""

    INTERNAL = "INTERNAL"
    INVALID_ARG = "INVALID_ARG"
    UNAVAILABLE = "UNAVAILABLE"
    CANCELLED = "CANCELLED"

    def __init__(self, message: str, code: str = INTERNAL) -> None:
        self._message = message
        self._code = code

    def message(self) -> str:
        return self._message

    def code(self) -> str:
        return self._code


class Tensor:
    """A name and an array."""

    def __init__(self, name: str, array: Any) -> None:
        self._name = name
        self._array = array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        return self._array


class InferenceResponse:
    """Tensors or an error."""

    def __init__(self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None) -> None:
        self._tensors = list(output_tensors)
        self._error = error

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


class Sender:
    """Collects what is sent for one request."""

    def __init__(self) -> None:
        self.responses: list[InferenceResponse] = []
        self.finals = 0
        self.cancelled = False
        self.broken = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        if self.broken:
            raise RuntimeError("the client's connection broke")
        assert self.finals == 0, "a response after the final one"
        if response is not None:
            self.responses.append(response)
        self.finals += flags

    def is_cancelled(self) -> bool:
        return self.cancelled


class Request:
    """A request as `execute` gets it."""

    def __init__(
        self,
        inputs: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | str = "{}",
        wanted: Sequence[str] | None = None,
    ) -> None:
        self.sender = Sender()
        self._wanted = wanted
        self._inputs = [Tensor(name, np.array(value, dtype=_dtype(value))) for name, value in (inputs or {}).items()]
        self._parameters = parameters if isinstance(parameters, str) else json.dumps(parameters)

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def parameters(self) -> str:
        return self._parameters

    def requested_output_names(self) -> list[str]:
        """All of them where the client names none, as Triton has it."""
        return [spec.name for spec in contract.OUTPUTS] if self._wanted is None else list(self._wanted)

    def get_response_sender(self) -> Sender:
        return self.sender


class MetricFamily:
    """A metric that nobody reads; Triton takes each name once."""

    COUNTER, GAUGE = "counter", "gauge"

    def __init__(self, name: str, description: str, kind: str) -> None:
        assert name and description and kind in (self.COUNTER, self.GAUGE)  # noqa: PT018

    def Metric(self, labels: Mapping[str, str]) -> MetricFamily:
        return self

    def increment(self, value: float) -> None:
        assert value == value


class Logger:
    """Collects lines by level."""

    lines: ClassVar[list[tuple[str, str]]] = []

    @classmethod
    def log_error(cls, line: str) -> None:
        cls.lines.append(("error", line))

    @classmethod
    def log_warn(cls, line: str) -> None:
        cls.lines.append(("warning", line))

    @classmethod
    def log_info(cls, line: str) -> None:
        cls.lines.append(("info", line))

    @classmethod
    def log_verbose(cls, line: str) -> None:
        cls.lines.append(("verbose", line))


class ModelConfig:
    """A model's configuration while it is completed."""

    def __init__(self, kind: str | None) -> None:
        self.data: dict[str, Any] = {"parameters": {"kind": {"string_value": kind}} if kind else {}}
        self.inputs: list[dict[str, Any]] = []
        self.outputs: list[dict[str, Any]] = []
        self.max_batch_size: int | None = None
        self.policy: dict[str, Any] = {}

    def as_dict(self) -> dict[str, Any]:
        return self.data

    def add_input(self, spec: dict[str, Any]) -> None:
        self.inputs.append(spec)

    def add_output(self, spec: dict[str, Any]) -> None:
        self.outputs.append(spec)

    def set_max_batch_size(self, size: int) -> None:
        self.max_batch_size = size

    def set_model_transaction_policy(self, policy: dict[str, Any]) -> None:
        self.policy = policy


def _dtype(value: Sequence[Any]) -> Any:
    return np.object_ if isinstance(value[0], bytes) else None
