"""Wait until the server answers. It starts empty, so this does not depend on the models' size."""

from __future__ import annotations

from tritonctl.client import Client
from tritonctl.deadline import Deadline
from tritonctl.errors import AccessDenied, TimedOut, Unreachable
from tritonctl.progress import Progress

_POLL_S = 0.1
_PER_REQUEST_S = 5.0


def until_live(client: Client, timeout: float, progress: Progress) -> float:
    """Seconds it took. Raises TimedOut with the last reason, AccessDenied at once."""
    deadline = Deadline(timeout)
    reason = "it was not asked"
    with progress.during(f"waiting for the server at {client.socket_path}", deadline):
        while not deadline.expired:
            try:
                if client.live(Deadline(min(_PER_REQUEST_S, deadline.remaining))):
                    return deadline.elapsed
                reason = "it answers that it is not live"
            except AccessDenied:
                raise
            except (Unreachable, TimedOut) as error:
                reason = str(error)
            deadline.sleep(_POLL_S)
    raise TimedOut(f"the server does not answer after {timeout:g} s: {reason}")
