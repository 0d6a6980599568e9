"""One tritonctl at a time changes things; the others wait for their turn."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tritonctl.deadline import Deadline
from tritonctl.errors import TimedOut, Unreachable

_POLL_S = 0.2


@contextmanager
def changes(socket_path: str, timeout: float, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock while the body runs; wait at most `timeout` seconds for it.

    The lock is on the socket's own directory: whoever may use the socket can take it, with no file to be made
    in a place that only the server writes to, and the kernel drops it with its holder.
    """
    directory = os.path.dirname(os.path.abspath(socket_path))
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        raise Unreachable(
            f"permission denied for {directory}: run as root or as a member of the group triton-admin"
        ) from None
    except OSError as error:
        raise Unreachable(f"no server at {socket_path}: {directory}: {error.strerror}") from None
    try:
        _acquire(handle, directory, Deadline(timeout), say)
        yield
    finally:
        os.close(handle)


def _acquire(handle: int, directory: str, deadline: Deadline, say: Callable[[str], None]) -> None:
    told = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if deadline.expired:
                raise TimedOut(
                    f"another tritonctl has been changing models for longer than {deadline.seconds:g} s "
                    f"(lock on {directory})"
                ) from None
            if not told:
                say(f"another tritonctl is changing models; waiting at most {deadline.seconds:g} s for it")
                told = True
            deadline.sleep(_POLL_S)
