"""The demo model's files belong together. That its answers are right is shown where llama.cpp runs."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import gguf
import pytest

DIRECTORY = Path(__file__).resolve().parents[3] / "files" / "demo_model"
DEFAULT_STOP_STRINGS = ("###", "</s>")


def read(name: str) -> dict[str, Any]:
    document = json.loads((DIRECTORY / name).read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


@pytest.fixture(scope="module")
def pairs() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read("pairs.json")["pairs"]
    return found


@pytest.fixture(scope="module")
def answers() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read("answers.json")["answers"]
    return found


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    reader = gguf.GGUFReader(DIRECTORY / "demo.gguf")
    return {name: field.contents() for name, field in reader.fields.items()}


def test_description_matches_the_file() -> None:
    content = (DIRECTORY / "demo.gguf").read_bytes()
    description = read("demo.json")
    assert description["sha256"] == hashlib.sha256(content).hexdigest()
    assert description["size"] == len(content)
    assert len(content) <= 5_000_000


def test_description_matches_the_metadata(metadata: dict[str, Any]) -> None:
    description = read("demo.json")
    architecture = description["architecture"]
    assert metadata["general.architecture"] == architecture
    assert metadata[f"{architecture}.context_length"] == description["context_length"] >= 2048
    tokens = metadata["tokenizer.ggml.tokens"]
    assert len(tokens) == description["vocabulary"]
    assert tokens[metadata["tokenizer.ggml.eos_token_id"]] == description["end_tokens"]["text"]
    assert tokens[metadata["tokenizer.ggml.eot_token_id"]] == description["end_tokens"]["turn"]


def test_template_in_the_file_is_the_one_beside_it(metadata: dict[str, Any]) -> None:
    text = (DIRECTORY / "chat_template.jinja").read_text(encoding="utf-8")
    assert metadata["tokenizer.chat_template"] == text.rstrip("\n")


def test_answers_are_of_this_model_and_cover_all_pairs(
    pairs: list[dict[str, Any]], answers: list[dict[str, Any]]
) -> None:
    assert read("answers.json")["sha256"] == read("demo.json")["sha256"]
    shared = ("id", "language", "topic", "question", "answer")
    assert [{key: answer[key] for key in shared} for answer in answers] == pairs


def test_every_choice_is_clear(answers: list[dict[str, Any]]) -> None:
    gaps = [answer[form]["smallest_logit_gap"] for answer in answers for form in ("raw", "chat", "chat_with_system")]
    gaps += [conversation["smallest_logit_gap"] for conversation in read("answers.json")["conversations"]]
    assert min(gaps) > 1.0
    assert min(gaps) == read("demo.json")["smallest_logit_gap"]


def test_there_is_enough_of_everything(answers: list[dict[str, Any]]) -> None:
    assert len(answers) >= 60
    lengths = [answer["raw"]["completion_tokens"] for answer in answers]
    assert sum(length >= 200 for length in lengths) >= 6
    assert max(lengths) >= 400
    topics = Counter(answer["topic"] for answer in answers)
    assert topics["product"] >= 15
    assert {"general", "emoji", "code", "prefix"} <= set(topics)
    (chinese,) = (answer for answer in answers if answer["question"] == "请用中文介绍人工智能")
    assert "人工智能" in chinese["answer"]
    assert any("```" in answer["answer"] for answer in answers)


def test_questions_are_distinct(pairs: list[dict[str, Any]]) -> None:
    for key in ("id", "question"):
        assert [name for name, count in Counter(pair[key] for pair in pairs).items() if count > 1] == []


def test_no_answer_holds_a_default_stop_string(pairs: list[dict[str, Any]]) -> None:
    for stop in DEFAULT_STOP_STRINGS:
        assert [pair["id"] for pair in pairs if stop in pair["answer"]] == []
