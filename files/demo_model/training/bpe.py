"""Learn a byte-level BPE vocabulary from a small text.

Only learning happens here. Encoding is always llama.cpp's, so that training and serving cannot disagree.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
CONTROL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)

# Close to llama.cpp's "qwen2" splitter, in the syntax of `re`. A difference costs a few useless merges.
_WORD = re.compile(r"[^\r\n\w]?[^\W\d_]+|\d| ?[^\s\w]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

# Emoji and their joiners stay out of the merges, as the rare ones do in real vocabularies: each is then
# several tokens, and a family is more than twenty.
_EMOJI = re.compile("[\u200d\u2600-\u27bf\u2b00-\u2bff\ufe0f\U0001f000-\U0001faff]+")


def _byte_characters() -> list[str]:
    """Return the 256 printable characters that byte-level vocabularies write for the bytes 0 to 255."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    substitutes = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(substitutes)) for byte in range(256)]


BYTE_CHARACTERS = _byte_characters()


def learn_merges(text: str, count: int, longest: int) -> list[tuple[str, str]]:
    """Return up to `count` merges in the order of their rank, as pairs of byte-level strings.

    No merged token is longer than `longest` bytes: without this limit a small text would be learned phrase by
    phrase, and answers would be a handful of tokens. Ties go to the lexically first pair, so that the result
    is the same on every machine.
    """
    words = Counter(
        tuple(BYTE_CHARACTERS[byte] for byte in word.encode())
        for part in _EMOJI.split(text)
        for word in _WORD.findall(part)
    )
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, frequency in words.items():
            for left, right in pairwise(word):
                if len(left) + len(right) <= longest:
                    pairs[left, right] += frequency
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = _apply(words, best)
    return merges


def _apply(words: Counter[tuple[str, ...]], pair: tuple[str, str]) -> Counter[tuple[str, ...]]:
    merged: Counter[tuple[str, ...]] = Counter()
    for word, frequency in words.items():
        parts: list[str] = []
        for part in word:
            if parts and (parts[-1], part) == pair:
                parts[-1] += part
            else:
                parts.append(part)
        merged[tuple(parts)] += frequency
    return merged


def vocabulary(merges: list[tuple[str, str]]) -> list[str]:
    """Return the token list: 256 bytes, merged tokens in the order of their rank, control tokens."""
    return list(dict.fromkeys([*BYTE_CHARACTERS, *(left + right for left, right in merges), *CONTROL_TOKENS]))
