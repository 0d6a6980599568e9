"""llama.cpp's log: one per process. Joins its pieces to lines, routes them, keeps the last errors for messages."""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable
from typing import Any

import llama_cpp as native

Log = Callable[[str, str], None]  # level (debug, info, warning, error), line

# The package's own bridge has these shifted by one and so loses the errors.
_LEVELS = {1: "debug", 2: "info", 3: "warning", 4: "error"}
_CONTINUED = 5


class LogBridge:
    """Takes the calls of llama.cpp's log and hands whole lines to `log`."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.errors: deque[str] = deque(maxlen=4)
        self._level = "debug"
        self._line = ""

    def write(self, level: int, text: bytes) -> None:
        """One call of llama.cpp's log callback."""
        if level != _CONTINUED:
            self._flush()
            self._level = _LEVELS.get(level, "debug")
        self._line += text.decode("utf-8", "replace")
        if self._line.endswith("\n"):
            self._flush()

    def _flush(self) -> None:
        line, self._line = self._line.strip(), ""
        if line:
            if self._level == "error":
                self.errors.append(line)
            self.log(self._level, line)


_bridge = LogBridge(lambda _level, _line: None)

# The native side holds only pointers to these, so they live as long as the process.
_write: Any = native.llama_log_callback(lambda level, text, _data: _bridge.write(level, text))
_last_words: Any = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(lambda text: _bridge.write(4, text + b"\n"))


def route(log: Log) -> None:
    """Send llama.cpp's lines to `log` from now on, and forget earlier errors."""
    _bridge.log = log
    _bridge.errors.clear()
    native.llama_log_set(_write, None)
    # An assertion that fails does not pass the log; its text would be lost with the process.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # without it a debugger is started in the dying process
    # Found through the library that has it loaded: by its own name it would be loaded once more, with its own state.
    native.llama_cpp._lib.ggml_set_abort_callback(_last_words)


def last_errors() -> str:
    """The last error lines of llama.cpp."""
    return "; ".join(_bridge.errors) or "it gave no reason"
