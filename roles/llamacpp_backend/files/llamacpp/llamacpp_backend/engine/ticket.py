"""A job that the engine has accepted: its answers, and what its client has been told."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ..parameters import N_SEEDS
from .job import Job
from .sequence import Answer


class Ticket:
    """`arrived_at`, `spoke_at`: clock seconds of the arrival, and of the last thing that the client was told."""

    __slots__ = ("answers", "arrived_at", "deadline", "has_text", "is_over", "is_started", "job", "left", "spoke_at")

    def __init__(self, job: Job, arrived_at: float) -> None:
        self.job = job
        self.arrived_at = arrived_at
        self.spoke_at = arrived_at
        self.deadline = math.inf if job.deadline is None else job.deadline
        self.is_started = False  # one of its answers has had a slot
        self.has_text = False  # the client has been sent something
        self.is_over = False  # the final call has been made
        self.left = job.sampling.n  # answers that are not complete
        self.answers: list[Answer] = []

    def make_answers(self, numbers: Iterator[int], n_ctx: int) -> list[Answer]:
        """Make the n answers, the next `numbers` being their ages. A given seed counts up, or they would be alike."""
        sampling = self.job.sampling
        for index in range(sampling.n):
            if index and sampling.seed is not None:
                sampling = replace(sampling, seed=(sampling.seed + 1) % N_SEEDS)
            self.answers.append(Answer(self, index, next(numbers), sampling, n_ctx))
        return self.answers
