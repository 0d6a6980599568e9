"""The border to Triton: the only importer of triton_python_backend_utils.

Tensors and parameters in, responses and errors out, cancellation, Triton's log.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import triton_python_backend_utils as pb_utils

from . import contract
from .answers import Collector, Outputs, final_outputs, piece_outputs
from .engine.job import Summary, TokenInfo
from .errors import BackendError, BadRequest, EngineFailure, LoadError
from .requests import RawRequest, decode_text
from .settings import Place

_KINDS = ("engine", "front")
_LISTS = frozenset(spec.name for spec in contract.ENGINE_INPUTS if spec.dims == (-1,))
_OUTPUT_TYPES = {spec.name: spec.data_type for spec in contract.OUTPUTS}
_metric_families: dict[str, Any] = {}  # of this process, by name: Triton takes each once


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


def make_series(name: str, kind: Literal["counter", "gauge"], text: str, labels: Mapping[str, str]) -> Any:
    """A time series in Triton's metrics; implements exporter.MakeSeries."""
    family = _metric_families.get(name)
    if family is None:
        kinds = {"counter": pb_utils.MetricFamily.COUNTER, "gauge": pb_utils.MetricFamily.GAUGE}
        family = _metric_families[name] = pb_utils.MetricFamily(name=name, description=text, kind=kinds[kind])
    return family.Metric(labels=dict(labels))


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
    """Answers one request with one response, or with many where `stream`. Implements engine.job.Reply.

    `deliver` runs what makes and sends a response: at once, or on another thread (delivery.Outbox), so that an
    engine's thread need not. The final flag is sent exactly once.
    """

    stream = False

    def __init__(self, request: Any, deliver: Callable[[Callable[[], None]], None]) -> None:
        self._request = request  # kept: Triton frees what it holds when it goes
        self._wanted = frozenset(request.requested_output_names())
        self._sender = request.get_response_sender()
        self._deliver = deliver
        self._collector = Collector()
        self._gone = False
        self._lock = threading.Lock()  # Triton is not asked about an answered request
        self._done = False

    def client_gone(self) -> bool:
        """Whether Triton has said that the client has cancelled."""
        return self._gone

    def look(self) -> bool:
        """Ask Triton whether the client has gone; False once there is no more use in asking. See delivery.Watched."""
        with self._lock:
            if not self._done and not self._gone:
                self._gone = bool(self._sender.is_cancelled())
            return not self._done and not self._gone

    def piece(self, index: int, text: str, tokens: Sequence[TokenInfo]) -> None:
        """Send a piece, or keep it for the one response."""
        if self.stream:
            self._deliver(lambda: self._send(lambda: piece_outputs(index, text, tokens)))
        else:
            self._collector.piece(index, text, tokens)

    def keep_alive(self) -> None:
        """Send an empty piece of a stream: over HTTP Triton notices at a write that the client has gone."""
        if self.stream:
            self.piece(0, "", ())

    def finish(self, answers: Sequence[Summary]) -> None:
        """Send what is left of the answers, how they ended, and the final flag."""
        if self.stream:
            self._deliver(lambda: self._send_last(lambda: final_outputs(answers)))
        else:
            self._deliver(lambda: self._send_last(lambda: self._collector.outputs(answers)))

    def answer(self, outputs: Outputs) -> None:
        """Send the last response."""
        self._deliver(lambda: self._send_last(lambda: outputs))

    def fail(self, error: BackendError) -> None:
        """Send an error with its own code as the last response."""
        self._deliver(lambda: self._send_final(_error_response(error)))

    def _response(self, outputs: Outputs) -> Any:
        return pb_utils.InferenceResponse(
            [_tensor(name, values) for name, values in outputs.items() if name in self._wanted]
        )

    def _send(self, make: Callable[[], Outputs]) -> None:
        if self._gone:
            return
        try:
            self._sender.send(self._response(make()))
        except Exception as error:  # the engine learns by `client_gone` that nobody can be told
            self._gone = True
            log("error", f"an answer could not be delivered: {error!r}")

    def _send_last(self, make: Callable[[], Outputs]) -> None:
        try:
            response = self._response(make())
        except Exception as error:
            log("error", f"an answer could not be made: {error!r}")
            response = _error_response(EngineFailure(f"internal error: {error!r}"))
        self._send_final(response)

    def _send_final(self, response: Any) -> None:
        with self._lock:
            if self._done:
                return
            self._done = True
            try:
                self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            except Exception as error:
                log("error", f"an answer could not be delivered: {error!r}")


def _error_response(error: BackendError) -> Any:
    code = getattr(pb_utils.TritonError, error.code)
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))


def _kind(config: Mapping[str, Any]) -> str:
    parameter = config.get("parameters", {}).get("kind", {})
    kind = parameter.get("string_value") if isinstance(parameter, dict) else None
    if kind not in _KINDS:
        raise LoadError(f"config.pbtxt: parameter kind is {kind!r}; allowed are {' and '.join(_KINDS)}")
    return str(kind)


def _decode(tensor: Any) -> Any:
    """Inputs of any length as a list, others as their one value. Raises BadRequest for another number of elements."""
    values = tensor.as_numpy().reshape(-1).tolist()
    values = [decode_text(tensor.name(), value) if isinstance(value, bytes) else value for value in values]
    if tensor.name() in _LISTS:
        return values
    if len(values) != 1:
        raise BadRequest(f"{tensor.name()} has {len(values)} elements; allowed is shape [1]")
    return values[0]


def _tensor(name: str, values: list[Any]) -> Any:
    if _OUTPUT_TYPES[name] == "TYPE_STRING":
        return pb_utils.Tensor(name, np.array([value.encode("utf-8") for value in values], dtype=np.object_))
    return pb_utils.Tensor(name, np.array(values, dtype=np.int32))
