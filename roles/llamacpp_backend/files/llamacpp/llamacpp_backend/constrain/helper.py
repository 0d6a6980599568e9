"""The trial's process as seen from the serving one: started when first needed, ended when it takes too long."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ..errors import BadRequest, Unavailable

START_SECONDS = 60.0  # to load the library and the vocabulary, on a busy machine
ANSWER_SECONDS = 5.0  # the process itself stops after less CPU time; this is for one that gets none
QUEUE_SECONDS = 10.0


class TrialProcess:
    """One process, one constraint at a time; threads may share it."""

    def __init__(self, model_path: Path, python: str | None = None) -> None:
        """`model_path`: the GGUF file whose vocabulary is used. `python`: by default the one of this environment."""
        self._model_path = model_path
        # In Triton's stub sys.executable is the stub; the environment's Python comes first in the PATH.
        self._python = python or shutil.which("python3") or sys.executable
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def run(self, kind: str, text: str) -> str:
        """The checked GBNF text of a constraint.

        Raises BadRequest when the constraint is wrong, or ends the process by what it makes it do; Unavailable when
        that says nothing of the constraint: no process for it, or one that got no CPU, or was killed.
        """
        if not self._lock.acquire(timeout=QUEUE_SECONDS):
            raise Unavailable("too many new constraints (json_schema, grammar) are being tried; try again later")
        try:
            process = self._started()
            answer = _ask(process, {"kind": kind, "text": text}, ANSWER_SECONDS)
            if answer is None:
                raise _failure(kind, self._end())
        finally:
            self._lock.release()
        if "error" in answer:
            raise BadRequest(answer["error"])
        return str(answer["gbnf"])

    def close(self) -> None:
        """End the process, for good: `run` raises Unavailable from now on. May be called again."""
        self._is_closed = True
        if (process := self._process) is not None:
            process.kill()  # a run that waits for it must not be waited for
        with self._lock:
            self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._is_closed:
            raise Unavailable("the model is being unloaded")
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        paths = [str(Path(__file__).resolve().parents[2]), *(path for path in sys.path if path)]
        self._process = subprocess.Popen(
            [self._python, "-m", f"{__package__}.trial", str(self._model_path)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        if self._is_closed:  # since it was looked at above; `close` may have seen no process to kill
            self._process.kill()
        if self._process.stdin is not None:
            os.set_blocking(self._process.stdin.fileno(), False)
        greeting = _read(self._process, time.monotonic() + START_SECONDS) or {}
        if "ready" not in greeting:
            code = self._end()
            reason = greeting.get("failed", f"it ended with status {code}")
            raise Unavailable(f"json_schema and grammar can't be tried now, as there is no process for it: {reason}")
        return self._process

    def _end(self) -> int | None:
        """End the process; its status if it had ended by itself."""
        process, self._process = self._process, None
        if process is None:
            return None
        code = process.poll()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return code


def _failure(kind: str, code: int | None) -> BadRequest | Unavailable:
    """What it means that a process gave no answer; `code`: its status, None when it was still running."""
    if code is None:
        return Unavailable(f"{kind} could not be tried within {ANSWER_SECONDS:g} s; try again later")
    if code == -signal.SIGKILL:  # by the kernel for want of memory, or by `close`: not of its own doing
        return Unavailable(f"{kind} could not be tried: its process was killed; try again later")
    return BadRequest(f"{kind} is not usable: it ends the process that tries it (status {code}); make it simpler")


def _ask(process: subprocess.Popen[bytes], request: dict[str, str], seconds: float) -> Any:
    """The answer to a request; None when there is none in time, or the process has ended."""
    deadline = time.monotonic() + seconds
    data = json.dumps(request).encode() + b"\n"
    pipe = process.stdin
    if pipe is None:
        return None
    try:
        while data:
            # It takes more than a pipe holds, and a process that is stopped does not read.
            if not _ready(pipe, select.POLLOUT, deadline):
                return None
            data = data[os.write(pipe.fileno(), data) :]
    except OSError:  # it has ended
        process.wait(timeout=START_SECONDS)
        return None
    return _read(process, deadline)


def _read(process: subprocess.Popen[bytes], deadline: float) -> Any:
    """One line of JSON; None when there is none in time, or the process has ended."""
    pipe = process.stdout
    if pipe is None:
        return None
    data = b""
    while not data.endswith(b"\n"):
        if not _ready(pipe, select.POLLIN, deadline):
            return None
        part = os.read(pipe.fileno(), 65_536)
        if not part:
            process.wait(timeout=START_SECONDS)
            return None
        data += part
    return json.loads(data)


def _ready(pipe: Any, event: int, deadline: float) -> bool:
    poll = select.poll()
    poll.register(pipe, event)
    return bool(poll.poll(1000 * max(0.0, deadline - time.monotonic())))
