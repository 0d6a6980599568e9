"""Errors of the backend, each with the name of the Triton error code it is answered with.

    BackendError            INTERNAL
    |-- BadRequest          INVALID_ARG   the client can mend it
    |-- Unavailable         UNAVAILABLE   try again later: queue full, engine not loaded, unloading
    |-- DeadlineExceeded    UNAVAILABLE   no text in time; Triton has no code of its own for it
    |-- Cancelled           CANCELLED     the client has gone
    `-- EngineFailure       INTERNAL      llama.cpp refused a step that should have worked

LoadError stands apart: it ends a load, never a request.
"""

from __future__ import annotations


class BackendError(Exception):
    """A request's failure. `code` is the name of a member of Triton's TritonError."""

    code = "INTERNAL"


class BadRequest(BackendError):
    """The request is wrong; the message says what, its value and what is allowed."""

    code = "INVALID_ARG"


class Unavailable(BackendError):
    """The engine can't take the request now."""

    code = "UNAVAILABLE"


class DeadlineExceeded(BackendError):
    """The request's time was up before there was any text."""

    code = "UNAVAILABLE"


class Cancelled(BackendError):
    """The client no longer wants the answer."""

    code = "CANCELLED"


class EngineFailure(BackendError):
    """A native call failed; the request is lost, the next one starts afresh."""


class LoadError(Exception):
    """The model can't be loaded; the message names the file or key, the value and what is allowed."""


_BY_CODE: dict[str, type[BackendError]] = {
    kind.code: kind for kind in (BadRequest, Unavailable, Cancelled, EngineFailure)
}


def from_code(code: str, message: str) -> BackendError:
    """The error that crossed a process border as a code and a message."""
    return _BY_CODE.get(code, EngineFailure)(message)
