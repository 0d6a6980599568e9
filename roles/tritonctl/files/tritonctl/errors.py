"""Exit codes, and one exception per way a command can fail."""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_TIMEOUT = 4
EXIT_INTERRUPTED = 130


class TritonctlError(Exception):
    """Base of all expected failures; the text is meant for the operator."""

    exit_code = EXIT_FAILED


class BadInput(TritonctlError):
    """An argument or the desired set is wrong."""

    exit_code = EXIT_USAGE


class Unreachable(TritonctlError):
    """The server can't be spoken to: no socket, refused, not permitted, gone away, or not Triton."""

    exit_code = EXIT_UNREACHABLE


class AccessDenied(Unreachable):
    """The socket is there, and this user may not use it: waiting does not help."""


class TimedOut(TritonctlError):
    """A time limit ran out."""

    exit_code = EXIT_TIMEOUT


class ServerRefused(TritonctlError):
    """The server answered, with an error.

    status: the HTTP status (an error can come with 200); reason: the server's own text.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
