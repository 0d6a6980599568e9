"""Prompts of a given number of tokens, made of random words by the model's own tokenizer."""

from __future__ import annotations

import random
import string
from collections.abc import Callable

TRIES = 1000
Count = Callable[[str], int]


def words(rng: random.Random, number: int) -> str:
    """Random lower-case words."""
    return " ".join("".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 7))) for _ in range(number))


def prompt(count: Count, tokens: int, seed: int) -> str:
    """Text of exactly `tokens` tokens by `count`; seeds give texts that share no beginning worth a cache.

    Raises ValueError when random words don't come out at that number.
    """
    rng = random.Random(seed)
    for _ in range(TRIES):
        text = words(rng, tokens)  # a word has a token or more
        short, long = 1, len(text)
        while short < long:  # the shortest beginning that has as many
            middle = (short + long) // 2
            if count(text[:middle]) < tokens:
                short = middle + 1
            else:
                long = middle
        if count(text[:short]) == tokens:
            return text[:short]
    raise ValueError(f"no text of {tokens} tokens in {TRIES} tries")
