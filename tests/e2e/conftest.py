"""What end-to-end tests start from: a lab host that `site.yml` was run on, named by TRITON_ENDPOINTS."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND_SECONDS = 600


class Host:
    """The lab host, by its container."""

    def __init__(self, container: str) -> None:
        self.container = container

    def run(self, cmd: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command as root on the host; text in UTF-8. A command that fails is the caller's to judge."""
        return subprocess.run(
            ["podman", "exec", self.container, *cmd],
            capture_output=True,
            encoding="utf-8",
            timeout=COMMAND_SECONDS,
            check=False,
        )

    def reboot(self) -> None:
        """Shut the host down in order and boot it again; its services may still be starting at the return."""
        subprocess.run(["podman", "restart", "--time", "120", self.container], check=True, capture_output=True)


@pytest.fixture(scope="session")
def endpoints() -> dict[str, Any]:
    """endpoints.json as the lab wrote it: http, metrics, grpc, host, container, shell."""
    path = os.environ.get("TRITON_ENDPOINTS")
    if not path:
        pytest.fail("TRITON_ENDPOINTS must be the path of a lab's endpoints.json (`make demo` writes one)")
    document = json.loads(Path(path).read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


@pytest.fixture(scope="session")
def host(endpoints: dict[str, Any]) -> Host:
    return Host(endpoints["container"])


@pytest.fixture(scope="session")
def answers() -> dict[str, str]:
    """The demo model's questions, each with the answer that greedy decoding must give."""
    document = json.loads((REPOSITORY / "files/demo_model/answers.json").read_text(encoding="utf-8"))
    return {item["question"]: item["answer"] for item in document["answers"]}
