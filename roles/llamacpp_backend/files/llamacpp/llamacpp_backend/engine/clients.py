"""The accepted jobs, and all that their clients are told: an exception of a reply ends its job and no other.

Nothing here raises: a failed call into a reply is answered with the error that its job is to end with.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..errors import BackendError, Cancelled, EngineFailure
from .job import Job, TokenInfo
from .ticket import Ticket

LOOK_EVERY = 0.02  # seconds between two looks whether clients are still there
KEEP_ALIVE_AFTER = 0.5  # seconds without a word to the client


class Clients:
    """Tickets by their jobs, oldest first; each gets `finish` or `fail`; both only if `finish` raises."""

    def __init__(self, log_error: Callable[[str], None]) -> None:
        self._log_error = log_error
        self._tickets: dict[Job, Ticket] = {}
        self.next_look = 0.0
        self.next_deadline = math.inf

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, ticket: Ticket) -> None:
        """Look after one more job."""
        self._tickets[ticket.job] = ticket
        self.next_deadline = min(self.next_deadline, ticket.deadline)

    def every(self) -> list[Ticket]:
        """All tickets."""
        return list(self._tickets.values())

    def look(self, now: float) -> list[tuple[Ticket, BackendError]]:
        """Ask whether clients have gone, keep those alive that have heard nothing; return the jobs that are to end."""
        self.next_look = now + LOOK_EVERY
        ended: list[tuple[Ticket, BackendError]] = []
        for ticket in self._tickets.values():
            reply = ticket.job.reply
            try:
                if reply.client_gone():
                    ended.append((ticket, Cancelled("the client has gone")))
                elif now - ticket.spoke_at >= KEEP_ALIVE_AFTER:
                    ticket.spoke_at = now
                    reply.keep_alive()
            except Exception as error:
                ended.append((ticket, self._undelivered(error)))
        return ended

    def overdue(self, now: float) -> list[Ticket]:
        """The jobs whose time is up."""
        late = [ticket for ticket in self._tickets.values() if ticket.deadline <= now]
        self.next_deadline = min((t.deadline for t in self._tickets.values() if t.deadline > now), default=math.inf)
        return late

    def piece(self, ticket: Ticket, index: int, text: str, infos: list[TokenInfo], now: float) -> BackendError | None:
        """Hand on new text; an error when that fails."""
        ticket.spoke_at = now
        ticket.has_text = True
        try:
            ticket.job.reply.piece(index, text, infos)
        except Exception as error:
            return self._undelivered(error)
        return None

    def finish(self, ticket: Ticket) -> None:
        """The job's last call: all its answers are complete."""
        self._remove(ticket)
        try:
            ticket.job.reply.finish([answer.result for answer in ticket.answers if answer.result is not None])
        except Exception as error:  # or the client would wait for ever
            self._tell(ticket, self._undelivered(error))
        ticket.answers.clear()  # they refer to each other: no work for the garbage collector

    def fail(self, ticket: Ticket, error: BackendError) -> None:
        """The job's last call: there is no answer."""
        self._remove(ticket)
        self._tell(ticket, error)
        ticket.answers.clear()

    def _tell(self, ticket: Ticket, error: BackendError) -> None:
        try:
            ticket.job.reply.fail(error)
        except Exception as failure:
            self._undelivered(failure)

    def _remove(self, ticket: Ticket) -> None:
        ticket.is_over = True
        del self._tickets[ticket.job]

    def _undelivered(self, error: Exception) -> BackendError:
        self._log_error(f"a client could not be reached: {error!r}")
        return EngineFailure(f"the answer could not be delivered: {error!r}")
