"""Turn the pairs into training sequences of token ids, raw and through the chat template."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from files.demo_model.training import bpe
from files.demo_model.training.engine import Engine

SYSTEM_MESSAGES = ("You are a helpful assistant.", "你是一个乐于助人的助手。", "Answer briefly.")
CONVERSATION_TOKENS = 700
CONVERSATION_TURNS = 3


@dataclass(frozen=True)
class Pair:
    """A question and the answer to learn by heart."""

    id: str
    language: str
    topic: str
    question: str
    answer: str


@dataclass(frozen=True)
class Example:
    """Token ids of one sequence; `learned[i]` tells whether ids[i] is to be predicted."""

    ids: tuple[int, ...]
    learned: tuple[bool, ...]

    def __add__(self, other: Example) -> Example:
        return Example(self.ids + other.ids, self.learned + other.learned)


def read_pairs(path: Path) -> list[Pair]:
    """Read pairs.json."""
    return [Pair(**pair) for pair in json.loads(path.read_text(encoding="utf-8"))["pairs"]]


class Corpus:
    """Makes one epoch of sequences after another, with llama.cpp's own tokenizer."""

    def __init__(self, pairs: list[Pair], engine: Engine, seed: int) -> None:
        self._pairs = pairs
        self._engine = engine
        self._random = random.Random(seed)
        self._answers = {pair.id: engine.tokenize(pair.answer, special=False) for pair in pairs}
        (self._end_of_text,) = engine.tokenize(bpe.END_OF_TEXT, special=True)
        (self._turn_end,) = engine.tokenize(bpe.TURN_END, special=True)
        self._cache: dict[tuple[str, bool], tuple[int, ...]] = {}

    def epoch(self) -> list[Example]:
        """Return each pair raw, alone in a chat, and again in varied forms, in no particular order.

        The varied forms are what people do: another system message, earlier turns, a missing question mark.
        """
        examples = [self.raw(pair, pair.question) for pair in self._pairs]
        examples += [self._turn(pair, pair.question) for pair in self._pairs]
        examples += [self.raw(pair, self._vary(pair.question)) for pair in self._pairs]
        shuffled = self._random.sample(self._pairs, len(self._pairs))
        while shuffled:
            conversation = self._system()
            for _ in range(self._random.randint(1, CONVERSATION_TURNS)):
                if shuffled and len(conversation.ids) < CONVERSATION_TOKENS:
                    pair = shuffled.pop()
                    conversation += self._turn(pair, self._vary(pair.question))
                    conversation += self._given("\n")
            examples.append(conversation)
        return examples

    def raw(self, pair: Pair, question: str) -> Example:
        """Return the question as plain text, then the answer and the end of the text."""
        return self._given(question, special=False) + self._wanted(pair, self._end_of_text)

    def _turn(self, pair: Pair, question: str) -> Example:
        prompt = self._engine.render([{"role": "user", "content": question}])
        return self._given(prompt) + self._wanted(pair, self._turn_end)

    def _system(self) -> Example:
        text = self._random.choice(("", *SYSTEM_MESSAGES))
        return self._given(f"{bpe.TURN_START}system\n{text}{bpe.TURN_END}\n" if text else "")

    def _vary(self, question: str) -> str:
        change = self._random.randrange(6)
        if change == 0:
            return question.rstrip("?？!.")
        if change == 1:
            return question.lower()
        if change == 2:
            return question.lower().rstrip("?？!.")
        return question

    def _given(self, text: str, special: bool = True) -> Example:
        key = text, special
        if key not in self._cache:
            self._cache[key] = tuple(self._engine.tokenize(text, special=special)) if text else ()
        ids = self._cache[key]
        return Example(ids, (False,) * len(ids))

    def _wanted(self, pair: Pair, end: int) -> Example:
        ids = (*self._answers[pair.id], end)
        return Example(ids, (True,) * len(ids))
