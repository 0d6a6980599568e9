"""Puts the stand-in for Triton's utilities where `triton_adapter` imports them from."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "fakes"))

Wait = Callable[[Callable[[], bool]], None]


@pytest.fixture
def wait_until() -> Wait:
    """Waits until the given condition holds, and fails when it does not within 5 s."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 5
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true within 5 s"
            time.sleep(0.002)

    return wait
