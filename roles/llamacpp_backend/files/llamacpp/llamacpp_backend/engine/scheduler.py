"""What the next step feeds, and whom it costs the slot when room is short. Pure decisions: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .runner import Chunk
from .sequence import Answer, State


@dataclass(frozen=True, slots=True)
class Step:
    """`chunks` and the answers that they are of, in the same order; how many of the tokens are of either kind."""

    chunks: list[Chunk]
    answers: list[Answer]
    n_decode: int
    n_prefill: int


def plan_step(running: Sequence[Answer], n_batch: int, n_decode: int, prefill_budget: int) -> Step:
    """The chunks of the next step.

    `running`: the answers that have a slot, by ascending slot, of which `n_decode` decode; n_batch is never less
    than the number of slots. Every one of those gets its token. Prefills share the rest of n_batch, or
    `prefill_budget` tokens if that is less while anything decodes.
    """
    if any(answer.is_suspect for answer in running):
        return _plan_alone(running, n_batch)
    if n_decode == len(running):
        return Step([_decode(answer) for answer in running], list(running), n_decode, 0)
    room = n_batch - n_decode
    shares = share_out(
        sorted(
            (answer for answer in running if answer.state is State.PREFILL and answer.follows is None),
            key=lambda answer: answer.number,
        ),
        min(room, prefill_budget) if n_decode else room,
    )
    chunks: list[Chunk] = []
    answers: list[Answer] = []
    for answer in running:
        if answer.state is State.DECODE:
            chunks.append(_decode(answer))
        elif share := shares.get(answer.number, 0):
            chunks.append(_prefill(answer, share))
        else:
            continue
        answers.append(answer)
    return Step(chunks, answers, n_decode, sum(shares.values()))


def share_out(filling: Sequence[Answer], budget: int) -> dict[int, int]:
    """Tokens for each of the prefills, by number; `filling`: oldest first.

    The oldest gets at least half, so that it always gets on; the others come shortest first, so that a short prompt
    does not wait behind a long one; what they leave is the oldest's again. Each becomes the oldest in the end.
    """
    if not filling or budget <= 0:
        return {}
    oldest, others = filling[0], sorted(filling[1:], key=_remaining)
    shares = {oldest.number: min(_wanted(oldest), (budget + 1) // 2)}
    left = budget - shares[oldest.number]
    for answer in others:
        if left <= 0:
            break
        shares[answer.number] = min(_wanted(answer), left)
        left -= shares[answer.number]
    shares[oldest.number] = min(_wanted(oldest), shares[oldest.number] + left)
    return shares


def next_to_admit(waiting: Sequence[Answer], running: Sequence[Answer], n_cells: int) -> Answer | None:
    """The first of `waiting`, when the shared pool of `n_cells` has room for all its tokens and the running ones'.

    Strictly first come, first served: one that doesn't fit holds back those behind it, or it would starve.
    """
    if not waiting:
        return None
    first = waiting[0]
    return first if not running or cells_needed(running) + len(first.tokens) <= n_cells else None


def cells_needed(running: Sequence[Answer]) -> int:
    """Cells taken once every running answer has been fed all that it has."""
    return sum(len(answer.tokens) for answer in running)


def newest(running: Sequence[Answer]) -> Answer:
    """The one that gives up its slot when room is short: the oldest are never sent back."""
    return max(running, key=lambda answer: answer.number)


def _plan_alone(running: Sequence[Answer], n_batch: int) -> Step:
    """After a failed step those that took part go on one at a time: a second failure then hits the culprit alone."""
    suspect = min((answer for answer in running if answer.is_suspect), key=lambda answer: answer.number)
    if suspect.state is State.DECODE:
        return Step([_decode(suspect)], [suspect], 1, 0)
    share = min(_wanted(suspect), n_batch)
    return Step([_prefill(suspect, share)], [suspect], 0, share)


def _remaining(answer: Answer) -> int:
    return len(answer.tokens) - answer.fed


def _wanted(answer: Answer) -> int:
    """Tokens up to the next mark, or to the end."""
    for mark in answer.marks:
        if mark > answer.fed:
            return mark - answer.fed
    return len(answer.tokens) - answer.fed


def _decode(answer: Answer) -> Chunk:
    return Chunk(answer.slot or 0, (answer.tokens[-1],), answer.fed, True)


def _prefill(answer: Answer, share: int) -> Chunk:
    end = answer.fed + share
    return Chunk(answer.slot or 0, answer.tokens[answer.fed : end], answer.fed, end == len(answer.tokens))
