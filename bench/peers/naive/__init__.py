"""The how-to's model as a peer."""

from __future__ import annotations

import shutil
from pathlib import Path

CONFIG = """\
backend: "python"
max_batch_size: 0
input [ {{ name: "prompt" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [
  {{ name: "generated_text" data_type: TYPE_STRING dims: [ 1 ] }},
  {{ name: "prompt_tokens" data_type: TYPE_INT32 dims: [ 1 ] }},
  {{ name: "completion_tokens" data_type: TYPE_INT32 dims: [ 1 ] }}
]
instance_group [ {{ kind: KIND_CPU }} ]
"""


def lay_out(directory: Path, gguf: Path, n_ctx: int, threads: int, venv: Path) -> None:
    """Write the model's directory of a Triton model repository."""
    (directory / "1").mkdir(parents=True)
    shutil.copy2(Path(__file__).with_name("model.py"), directory / "1" / "model.py")
    values = {"gguf": gguf, "n_ctx": n_ctx, "n_threads": threads, "EXECUTION_ENV_PATH": venv}
    parameters = "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in values.items()
    )
    (directory / "config.pbtxt").write_text(CONFIG.format() + parameters, encoding="utf-8")
