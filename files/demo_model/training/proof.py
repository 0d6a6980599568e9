"""Prove by llama.cpp that a model gives each answer exactly, and describe what tests may expect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from files.demo_model.training.corpus import SYSTEM_MESSAGES, Pair
from files.demo_model.training.engine import Engine

SMALLEST_GAP = 1.0
BATCH_SIZES = (512, 7)  # a prompt in one piece, and in many small ones
CONVERSATIONS = (
    ("en-hello", "en-who", "en-product"),
    ("zh-capital", "zh-ai"),
    ("en-fox", "zh-poem", "en-ports"),
    ("emoji-family", "code-fib"),
)


def prove(model: Path, pairs: list[Pair]) -> dict[str, Any]:
    """Return the expected answers with token counts and gaps.

    Raises ValueError naming every prompt whose greedy answer differs, does not end by itself, or has two best
    logits nearer than SMALLEST_GAP, with any of BATCH_SIZES.
    """
    proof = _Proof(model)
    answers = []
    for pair in pairs:
        chat = [{"role": "user", "content": pair.question}]
        system = [{"role": "system", "content": SYSTEM_MESSAGES[0]}]
        answers.append(
            {
                "id": pair.id,
                "language": pair.language,
                "topic": pair.topic,
                "question": pair.question,
                "answer": pair.answer,
                "raw": proof.raw(pair),
                "chat": proof.chat(pair, chat),
                "chat_with_system": {"system": SYSTEM_MESSAGES[0], **proof.chat(pair, system + chat)},
            }
        )
    known = {pair.id: pair for pair in pairs}
    conversations = []
    for names in CONVERSATIONS:
        messages: list[dict[str, str]] = []
        for name in names[:-1]:
            messages.append({"role": "user", "content": known[name].question})
            messages.append({"role": "assistant", "content": known[name].answer})
        last = known[names[-1]]
        messages.append({"role": "user", "content": last.question})
        conversations.append({"messages": messages, "answer": last.answer, **proof.chat(last, messages)})
    proof.close()
    if proof.faults:
        raise ValueError(f"{len(proof.faults)} answers are not right:\n" + "\n".join(proof.faults))
    return {"smallest_logit_gap": proof.gap, "answers": answers, "conversations": conversations}


class _Proof:
    def __init__(self, model: Path) -> None:
        self._engines = [Engine(model, n_batch=size) for size in BATCH_SIZES]
        self.faults: list[str] = []
        self.gap = float("inf")

    def close(self) -> None:
        for engine in self._engines:
            engine.__exit__(None, None, None)

    def raw(self, pair: Pair) -> dict[str, Any]:
        return self._ask(pair, "raw", self._engines[0].tokenize(pair.question, special=False))

    def chat(self, pair: Pair, messages: list[dict[str, str]]) -> dict[str, Any]:
        prompt = self._engines[0].render(messages)
        return self._ask(pair, f"chat of {len(messages)}", self._engines[0].tokenize(prompt, special=True))

    def _ask(self, pair: Pair, form: str, prompt: list[int]) -> dict[str, Any]:
        smallest = float("inf")
        limit = len(self._engines[0].tokenize(pair.answer, special=False)) + 8
        for engine in self._engines:
            tokens, end, gap = engine.greedy(prompt, limit)
            smallest = min(smallest, gap)
            text = engine.piece(tokens).decode("utf-8", "replace")
            if text != pair.answer:
                same = next((i for i, (a, b) in enumerate(zip(text, pair.answer, strict=False)) if a != b), None)
                self.faults.append(f"{pair.id}, {form}: differs at character {same}: {text[:80]!r}")
            elif end is None:
                self.faults.append(f"{pair.id}, {form}: does not end by itself")
            elif gap < SMALLEST_GAP:
                self.faults.append(f"{pair.id}, {form}: smallest gap is {gap:.2f}, wanted {SMALLEST_GAP}")
        self.gap = min(self.gap, round(smallest, 2))
        return {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(tokens),
            "smallest_logit_gap": round(smallest, 2),
        }
