"""Entry point of the `llamacpp` backend: Triton's Python backend loads this file once per model instance.

The model's config.pbtxt says by its parameter `kind` which of the two models this process serves: `engine` (holds
the weights, decoupled) or `front` (non-decoupled, calls the engine). Only the engine's process imports llama.cpp.
"""

from __future__ import annotations

from typing import Any

from llamacpp_backend import triton_adapter


class TritonPythonModel:
    """What Triton calls; everything else is in the package `llamacpp_backend`."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Give the model its tensors, so that config.pbtxt need not repeat them."""
        return triton_adapter.complete_config(auto_complete_model_config)

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model; an exception makes Triton report the load as failed with its message."""
        place = triton_adapter.read_place(args)
        if place.kind == "engine":
            from llamacpp_backend.engine_model import open_engine

            self._model: Any = open_engine(place)
        else:
            from llamacpp_backend.front_model import open_front

            self._model = open_front(place)

    def execute(self, requests: list[Any]) -> None:
        """Take requests over; every response leaves through the request's response sender."""
        self._model.execute(requests)

    def finalize(self) -> None:
        """Let running work end, then release everything."""
        self._model.finalize()
