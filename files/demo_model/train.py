"""Train the demo model, write demo.gguf, and prove every answer with llama.cpp itself.

Run from the repository's root, in a throw-away environment (see README.md beside this file):
    python -m files.demo_model.train
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from files.demo_model.training import bpe, gguf_file
from files.demo_model.training.corpus import Corpus, Example, read_pairs
from files.demo_model.training.engine import Engine
from files.demo_model.training.network import Network, Shape
from files.demo_model.training.proof import prove

HERE = Path(__file__).resolve().parent
SEED = 20240601
MERGES = 800
LONGEST_TOKEN = 6  # bytes: two ideographs, or an English syllable
BATCH_TOKENS = 3072
PEAK_LEARNING_RATE = 2e-3
WARMUP_STEPS = 60
WANTED_GAP = 10.0  # of logits, between the right token and the next best


def batches(examples: list[Example], order: random.Random) -> list[list[Example]]:
    """Group examples of similar length, at most BATCH_TOKENS with padding, in random order."""
    groups: list[list[Example]] = []
    for example in sorted(examples, key=lambda example: len(example.ids), reverse=True):
        if not groups or (len(groups[-1]) + 1) * len(groups[-1][0].ids) > BATCH_TOKENS:
            groups.append([])
        groups[-1].append(example)
    order.shuffle(groups)
    return groups


def loss_of(network: Network, batch: list[Example]) -> tuple[torch.Tensor, float]:
    """Return the loss over the learned tokens, and the smallest gap of a right logit to the best wrong."""
    length = len(batch[0].ids)
    ids = torch.zeros(len(batch), length, dtype=torch.long)
    learned = torch.zeros(len(batch), length, dtype=torch.bool)
    for row, example in enumerate(batch):
        ids[row, : len(example.ids)] = torch.tensor(example.ids)
        learned[row, : len(example.ids)] = torch.tensor(example.learned)
    logits = network(ids[:, :-1])[learned[:, 1:]]
    targets = ids[:, 1:][learned[:, 1:]]
    right = logits.gather(1, targets[:, None])[:, 0]
    wrong = logits.scatter(1, targets[:, None], float("-inf")).amax(1)
    gap = right - wrong
    # Cross entropy teaches the answers; the hinge widens the narrowest choices, which cross entropy neglects.
    loss = functional.cross_entropy(logits, targets) + 0.1 * functional.relu(WANTED_GAP - gap).mean()
    return loss, gap.min().item()


def train(network: Network, corpus: Corpus, epochs: int) -> None:
    """Train in place; prints one line per 5 epochs."""
    order = random.Random(SEED)
    optimizer = torch.optim.AdamW(network.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    started, step = time.monotonic(), 0
    for epoch in range(epochs):
        losses: list[float] = []
        gap = float("inf")
        groups = batches(corpus.epoch(), order)
        for batch in groups:
            done = (epoch + len(losses) / len(groups)) / epochs
            decay = 0.5 * (1 + math.cos(math.pi * done))
            rate = PEAK_LEARNING_RATE * min(1.0, (step + 1) / WARMUP_STEPS) * (0.01 + 0.99 * decay)
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss, smallest = loss_of(network, batch)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            gap = min(gap, smallest)
            step += 1
        if epoch % 5 == 4 or epoch + 1 == epochs:
            mean = sum(losses) / len(losses)
            seconds = time.monotonic() - started
            print(
                f"epoch {epoch + 1}/{epochs} loss {mean:.4f} smallest gap {gap:.2f} {seconds:.0f} s",
                flush=True,
            )


def main() -> None:
    """Train, export, prove, and write the files that tests read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch; another number changes the result a little")
    parser.add_argument("--output", type=Path, default=HERE, help="directory for demo.gguf, demo.json, answers.json")
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(arguments.threads)

    started = time.monotonic()
    pairs = read_pairs(HERE / "pairs.json")
    template = (HERE / "chat_template.jinja").read_text(encoding="utf-8").rstrip("\n")
    text = "\n".join(f"{pair.question}\n{pair.answer}" for pair in pairs)
    merges = bpe.learn_merges(text, MERGES, LONGEST_TOKEN)
    shape = Shape(vocabulary=len(bpe.vocabulary(merges)))
    network = Network(shape)
    with tempfile.TemporaryDirectory() as directory:
        vocabulary = Path(directory) / "vocabulary.gguf"
        gguf_file.write(vocabulary, shape, merges, template, {})
        with Engine(vocabulary, vocab_only=True) as engine:
            corpus = Corpus(pairs, engine, SEED)
            train(network, corpus, arguments.epochs)
    seconds = time.monotonic() - started

    model = arguments.output / "demo.gguf"
    tensors = {name: tensor.numpy() for name, tensor in network.gguf_tensors().items()}
    gguf_file.write(model, shape, merges, template, tensors)
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    answers = prove(model, pairs)
    description: dict[str, Any] = {
        "schema": 1,
        "file": model.name,
        "sha256": digest,
        "size": model.stat().st_size,
        "architecture": gguf_file.ARCHITECTURE,
        "context_length": shape.context_length,
        "vocabulary": shape.vocabulary,
        "parameters": sum(tensor.size for tensor in tensors.values()),
        "end_tokens": {"text": bpe.END_OF_TEXT, "turn": bpe.TURN_END},
        "smallest_logit_gap": answers["smallest_logit_gap"],
    }
    for name, content in (
        ("demo.json", description),
        ("answers.json", {"schema": 1, "sha256": digest, **answers}),
    ):
        text = json.dumps(content, ensure_ascii=False, indent=2) + "\n"
        (arguments.output / name).write_text(text, encoding="utf-8")
    print(json.dumps(description, indent=2))
    print(f"trained in {seconds:.0f} s; all {len(pairs)} answers are exact")


if __name__ == "__main__":
    main()
