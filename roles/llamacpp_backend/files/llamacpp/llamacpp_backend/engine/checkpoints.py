"""Where the prefill of a hybrid stops to keep its recurrent state: later requests can come back only to such places."""

from __future__ import annotations

from collections.abc import Callable, Sequence

# Computing fewer tokens again costs less than a step of its own.
TURN_SPACING = 16
SPACING = 64
# A prompt without turns is met again with another end: a question after a document.
TAIL = 64
MAX_TURNS = 16  # of one prompt, beside its first (the system prompt); earlier requests have kept the turns before


def prefill_marks(tokens: Sequence[int], is_end: Callable[[int], bool], every: int) -> list[int]:
    """Lengths, ascending, at which a checkpoint of this prompt is worth a step; all below its own length.

    After turns (`is_end`: a token that ends one), `every` so many tokens (0: not), and near the end.
    """
    last = len(tokens) - 1
    marks: list[int] = []

    def add(position: int, spacing: int) -> None:
        if spacing <= position <= last and all(abs(position - mark) >= spacing for mark in marks):
            marks.append(position)

    turns = [at + 1 for at, token in enumerate(tokens[:last]) if is_end(token)]
    # The system prompt's end before all others: a short first question ends close by, and the next one is another.
    for position in [*turns[:1], *reversed(turns[-MAX_TURNS:])]:
        add(position, TURN_SPACING)
    if not any(mark > last - TAIL for mark in marks):
        add(last + 1 - TAIL, SPACING)
    for position in range(every, last, every) if every else ():
        add(position, SPACING)
    return sorted(marks)
