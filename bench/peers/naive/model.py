"""The model of the well-known how-to: one Llama object, one request after another, the whole answer at once."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from llama_cpp import Llama


class TritonPythonModel:
    """Triton's Python backend calls `execute` again only when it has returned: nothing is batched or interleaved."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model by the parameters of config.pbtxt."""
        parameters = json.loads(args["model_config"])["parameters"]
        values = {name: entry["string_value"] for name, entry in parameters.items()}
        self.llm = Llama(
            model_path=values["gguf"],
            n_ctx=int(values["n_ctx"]),
            n_threads=int(values["n_threads"]),
            n_threads_batch=int(values["n_threads"]),
            verbose=False,
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer the requests of one batch in turn."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        prompt = pb_utils.get_input_tensor_by_name(request, "prompt").as_numpy()[0].decode()
        parameters = json.loads(request.parameters())
        result: Any = self.llm(
            prompt, max_tokens=parameters["max_tokens"], temperature=parameters["temperature"], stop=["</s>", "###"]
        )
        usage = result["usage"]
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("generated_text", np.array([result["choices"][0]["text"].encode()], dtype=np.object_)),
                pb_utils.Tensor("prompt_tokens", np.array([usage["prompt_tokens"]], dtype=np.int32)),
                pb_utils.Tensor("completion_tokens", np.array([usage["completion_tokens"]], dtype=np.int32)),
            ]
        )
