"""The border to Triton: the only importer of triton_python_backend_utils.

Tensors and parameters in, responses and errors out, cancellation, the call from front to engine, Triton's log.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from . import contract
from .errors import BackendError, BadRequest, EngineFailure, LoadError, Unavailable, from_code
from .generator import Summary
from .requests import RawRequest
from .settings import Place

_KINDS = ("engine", "front")


def complete_config(config: Any) -> Any:
    """Add tensors and transaction policy to the model's configuration (pb_utils.ModelConfig)."""
    kind = _kind(config.as_dict())
    engine = kind == "engine"
    config.set_max_batch_size(0)
    for spec in contract.ENGINE_INPUTS if engine else contract.FRONT_INPUTS:
        config.add_input({"name": spec.name, "data_type": spec.data_type, "dims": list(spec.dims), "optional": True})
    for spec in contract.ENGINE_OUTPUTS if engine else contract.FRONT_OUTPUTS:
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
    parameters = read_parameters(request)
    handed_on = parameters.pop(contract.PRIVATE_PARAMETERS, "{}")
    return RawRequest(inputs, {**_parse_parameters(handed_on), **parameters})


def read_parameters(request: Any) -> dict[str, Any]:
    """A request's parameters by name. Raises BadRequest."""
    try:
        text = request.parameters() or "{}"
    except UnicodeDecodeError as error:  # Triton hands on the client's bytes as they are
        raise BadRequest(f"the request's parameters are not UTF-8: {error}") from error
    return _parse_parameters(text)


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


class EngineReply:
    """Answers one request of the engine. Implements worker.Reply; the final flag is sent exactly once."""

    def __init__(self, request: Any) -> None:
        self._sender = request.get_response_sender()
        self._lock = threading.Lock()
        self._done = False
        self._texts: list[str] = []
        self.stream = False
        self.private = False  # a front asks: errors go out as a status output

    def client_gone(self) -> bool:
        """Whether Triton knows that the client has cancelled."""
        return bool(self._sender.is_cancelled())

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
        """Send an error as the last response."""
        if self.private:
            status = json.dumps({"code": error.code, "message": str(error)}, ensure_ascii=False)
            self._send_last(pb_utils.InferenceResponse([_text_tensor(contract.PRIVATE_STATUS, status)]))
        else:
            self._send_last(_error_response(error))

    def end(self) -> None:
        """Send nothing but the end."""
        self._send_last(None)

    def _send_last(self, response: Any) -> None:
        with self._lock:
            if self._done:
                return
            self._done = True
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        if response is None:
            self._sender.send(flags=final)
        else:
            self._sender.send(response, flags=final)


class FrontReply:
    """Answers one request of a front, once."""

    def __init__(self, request: Any) -> None:
        self._request = request  # kept: its tensors live in shared memory that goes with it
        self._sender = request.get_response_sender()
        self._lock = threading.Lock()  # the watcher asks while another thread answers
        self._done = False

    @property
    def inputs(self) -> list[Any]:
        """The client's tensors, to be handed on as they are."""
        return list(self._request.inputs())

    def client_gone(self) -> bool:
        """Whether Triton knows that the client has cancelled. Triton is not asked about an answered request."""
        with self._lock:
            return not self._done and bool(self._sender.is_cancelled())

    def answer(self, tensors: Sequence[Any]) -> None:
        """Send the answer."""
        self._send(pb_utils.InferenceResponse(list(tensors)))

    def fail(self, error: BackendError) -> None:
        """Send an error with its own code."""
        self._send(_error_response(error))

    def _send(self, response: Any) -> None:
        with self._lock:
            self._done = True
            self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class EngineCall:
    """Calls a front's engine inside the server (BLS)."""

    def __init__(self, engine_model: str) -> None:
        self._engine_model = engine_model
        self._outputs = [spec.name for spec in contract.ENGINE_OUTPUTS]

    def ask(self, inputs: Sequence[Any], parameters: Mapping[str, Any], key: str) -> list[Any]:
        """The engine's answer as tensors. Waits for it. Raises BackendError with the engine's own code."""
        tensors: list[Any] = []
        private = {contract.PRIVATE_KEY: key, contract.PRIVATE_PARAMETERS: json.dumps(parameters)}
        for response in self._send(inputs, private):
            if response.has_error():
                raise EngineFailure(response.error().message())
            tensors += response.output_tensors()
        for tensor in tensors:
            if tensor.name() == contract.PRIVATE_STATUS:
                status = json.loads(tensor.as_numpy().reshape(-1)[0])
                raise from_code(status["code"], status["message"])
        if not tensors:
            raise EngineFailure(f"model '{self._engine_model}' gave no answer")
        return tensors

    def cancel(self, key: str) -> None:
        """Ask the engine to end the request with this key."""
        for _ in self._send([], {contract.PRIVATE_CANCEL: key}):
            pass

    def _send(self, inputs: Sequence[Any], parameters: Mapping[str, Any]) -> Any:
        call = pb_utils.InferenceRequest(
            model_name=self._engine_model,
            requested_output_names=self._outputs,
            inputs=list(inputs),
            parameters=dict(parameters),
        )
        try:
            return call.exec(decoupled=True)
        except pb_utils.TritonModelException as error:
            raise Unavailable(f"model '{self._engine_model}' can't be called: {error}") from error


def _parse_parameters(text: Any) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except (TypeError, ValueError) as error:
        raise BadRequest(f"the request's parameters can't be read: {error}") from error


def _kind(config: Mapping[str, Any]) -> str:
    parameter = config.get("parameters", {}).get("kind", {})
    kind = parameter.get("string_value") if isinstance(parameter, dict) else None
    if kind not in _KINDS:
        raise LoadError(f"config.pbtxt: parameter kind is {kind!r}; allowed are {' and '.join(_KINDS)}")
    return str(kind)


def _decode(tensor: Any) -> Any:
    """`stop` as a list, other tensors as their one value. Raises BadRequest for another number of elements."""
    values = tensor.as_numpy().reshape(-1).tolist()
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


def _error_response(error: BackendError) -> Any:
    code = getattr(pb_utils.TritonError, error.code)
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))
