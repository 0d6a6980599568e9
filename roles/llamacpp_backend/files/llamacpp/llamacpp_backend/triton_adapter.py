"""The border to Triton: the only importer of triton_python_backend_utils.

Tensors and parameters in, responses and errors out, cancellation, Triton's log.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from . import contract
from .errors import BackendError, BadRequest, LoadError
from .generator import Summary
from .requests import RawRequest, decode_text
from .settings import Place

_KINDS = ("engine", "front")


def complete_config(config: Any) -> Any:
    """Add tensors and transaction policy to the model's configuration (pb_utils.ModelConfig)."""
    kind = _kind(config.as_dict())
    engine = kind == "engine"
    config.set_max_batch_size(0)
    for spec in contract.ENGINE_INPUTS if engine else contract.FRONT_INPUTS:
        config.add_input({"name": spec.name, "data_type": spec.data_type, "dims": list(spec.dims), "optional": True})
    for spec in contract.OUTPUTS:
        config.add_output({"name": spec.name, "data_type": spec.data_type, "dims": list(spec.dims)})
    config.set_model_transaction_policy({"decoupled": engine})
    return config


def read_place(args: Mapping[str, str]) -> Place:
    """What `initialize` was told."""
    kind = _kind(json.loads(args["model_config"]))
    return Place(kind, args["model_name"], Path(args["model_repository"]) / args["model_version"])


def read_request(request: Any) -> RawRequest:
    """Decode a request's inputs and parameters. Raises BadRequest."""
    inputs = {tensor.name(): _decode(tensor) for tensor in request.inputs()}
    try:
        parameters = dict(json.loads(request.parameters() or "{}"))
    except UnicodeDecodeError as error:  # Triton hands on the client's bytes as they are
        raise BadRequest(f"the request's parameters are not UTF-8: {error}") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(f"the request's parameters can't be read: {error}") from error
    return RawRequest(inputs, parameters)


def log(level: str, line: str) -> None:
    """A line into Triton's log; `level` is debug, info, warning or error."""
    logger = pb_utils.Logger
    if level == "error":
        logger.log_error(line)
    elif level == "warning":
        logger.log_warn(line)
    elif level == "info":
        logger.log_info(line)
    else:
        logger.log_verbose(line)


class TritonReply:
    """Answers one request with one response, or with many where `stream`. Implements worker.Reply.

    The final flag is sent exactly once.
    """

    def __init__(self, request: Any) -> None:
        self._sender = request.get_response_sender()
        self._lock = threading.Lock()  # a front asks on one thread while another answers
        self._done = False
        self._texts: list[str] = []
        self.stream = False

    def client_gone(self) -> bool:
        """Whether Triton knows that the client has cancelled. Triton is not asked about an answered request."""
        with self._lock:
            return not self._done and bool(self._sender.is_cancelled())

    def piece(self, text: str) -> None:
        """Send a piece now, or keep it for the one response."""
        if self.stream:
            self._sender.send(pb_utils.InferenceResponse(_text_tensors(text)))
        else:
            self._texts.append(text)

    def finish(self, summary: Summary) -> None:
        """Send what is left of the text, the finish reason and the counts as the last response."""
        tensors = _text_tensors("".join(self._texts))
        tensors.append(_text_tensor(contract.FINISH_REASON, summary.finish_reason))
        tensors.append(_count_tensor(contract.PROMPT_TOKENS, summary.prompt_tokens))
        tensors.append(_count_tensor(contract.COMPLETION_TOKENS, summary.completion_tokens))
        self._send_last(pb_utils.InferenceResponse(tensors))

    def fail(self, error: BackendError) -> None:
        """Send an error with its own code as the last response."""
        code = getattr(pb_utils.TritonError, error.code)
        self._send_last(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code)))

    def _send_last(self, response: Any) -> None:
        with self._lock:
            if self._done:
                return
            self._done = True
            self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _kind(config: Mapping[str, Any]) -> str:
    parameter = config.get("parameters", {}).get("kind", {})
    kind = parameter.get("string_value") if isinstance(parameter, dict) else None
    if kind not in _KINDS:
        raise LoadError(f"config.pbtxt: parameter kind is {kind!r}; allowed are {' and '.join(_KINDS)}")
    return str(kind)


def _decode(tensor: Any) -> Any:
    """`stop` as a list, other tensors as their one value. Raises BadRequest for another number of elements."""
    values = tensor.as_numpy().reshape(-1).tolist()
    values = [decode_text(tensor.name(), value) if isinstance(value, bytes) else value for value in values]
    if tensor.name() == "stop":
        return values
    if len(values) != 1:
        raise BadRequest(f"{tensor.name()} has {len(values)} elements; allowed is shape [1]")
    return values[0]


def _text_tensor(name: str, text: str) -> Any:
    return pb_utils.Tensor(name, np.array([text.encode("utf-8")], dtype=np.object_))


def _count_tensor(name: str, count: int) -> Any:
    return pb_utils.Tensor(name, np.array([count], dtype=np.int32))


def _text_tensors(text: str) -> list[Any]:
    return [_text_tensor(name, text) for name in contract.TEXT_OUTPUTS]
