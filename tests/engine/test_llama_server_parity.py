"""The engine against llama.cpp's own server: same file, same prompts, greedy: the same tokens but for near-ties.

The server is built from the sources of the wheel by `python -m bench.peers.llama_server`, or named by LLAMA_SERVER.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from llamacpp_backend.chat import ChatTemplate
from llamacpp_backend.engine.core import EngineLimits
from llamacpp_backend.engine.job import Job, Summary, TokenInfo
from llamacpp_backend.engine.loop import Engine
from llamacpp_backend.engine.prompt_cache import CacheLimits
from llamacpp_backend.errors import BackendError
from llamacpp_backend.prompts import PromptEncoder
from llamacpp_backend.requests import RawRequest, parse_generate

from bench import models
from bench.peers import llama_server
from tests.engine.near_ties import OTHER_CHUNKS, SAME_CHUNKS

SERVER = Path(os.environ.get("LLAMA_SERVER") or llama_server.path())
SLOTS, N_CTX, THREADS, QUEUE_SIZE = 4, 512, 1, 64
MAX_TOKENS = 48
SECONDS = 60

PROMPTS = [
    "What is Triton?",
    "请用中文介绍人工智能",
    "The quick brown fox jumps over the lazy dog. " * 6,
    "a",
    '{"key": [1, 2, 3], "text": "naïve café 😀"}',
    "  leading spaces,\n\nand\tother white space  ",
    "<|im_end|> is a control token here, and text",
]
CONVERSATIONS = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is tritonctl?"}],
    [
        {"role": "system", "content": "You answer in Chinese."},
        {"role": "user", "content": "你好 😀"},
        {"role": "assistant", "content": "你好！"},
        {"role": "user", "content": "two\nlines  and spaces "},
    ],
]


@dataclass
class Answer:
    """An answer's text and tokens, and per token by how much the best was ahead of the second (ours only)."""

    text: str
    tokens: list[int]
    prompt_tokens: int
    completion_tokens: int
    leads: list[float] = field(default_factory=list)


class LlamaServer:
    """A llama-server that runs."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"

    def call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """GET, or POST JSON."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            return json.load(response)

    def answer(self, prompt: str | Sequence[int]) -> Answer:
        """A greedy answer, computed without what is cached."""
        options = {"n_predict": MAX_TOKENS, "temperature": 0, "cache_prompt": False, "return_tokens": True}
        said = self.call("/completion", {"prompt": prompt, **options})
        return Answer(said["content"], said["tokens"], said["tokens_evaluated"], said["tokens_predicted"])


class Collected:
    """A job's reply. Implements engine.job.Reply."""

    def __init__(self) -> None:
        self._done: queue.Queue[Summary | BackendError] = queue.Queue()
        self._tokens: list[TokenInfo] = []
        self._text = ""

    def client_gone(self) -> bool:
        return False

    def piece(self, _index: int, text: str, tokens: Sequence[TokenInfo]) -> None:
        self._text += text
        self._tokens += tokens

    def keep_alive(self) -> None:
        pass

    def finish(self, answers: Sequence[Summary]) -> None:
        self._done.put(answers[0])

    def fail(self, error: BackendError) -> None:
        self._done.put(error)

    def answer(self) -> Answer:
        """Wait for the end. Raises the error that the job failed with."""
        summary = self._done.get(timeout=SECONDS)
        if isinstance(summary, BackendError):
            raise summary
        leads = [info.top[0][2] - info.top[1][2] for info in self._tokens]
        tokens = [info.token for info in self._tokens]
        return Answer(self._text, tokens, summary.prompt_tokens, summary.completion_tokens, leads)


class Ours:
    """The engine with a real model, and what cuts its prompts into tokens."""

    def __init__(self, engine: Engine, prompts: PromptEncoder) -> None:
        self._engine = engine
        self._prompts = prompts

    def tokens(self, prompt: str) -> list[int]:
        """A raw prompt as the product cuts it into tokens."""
        return self._prompts.encode(self._parse(prompt))

    def answers(self, prompts: Sequence[str]) -> list[Answer]:
        """Greedy answers to prompts that are all under way at once."""
        replies = [Collected() for _ in prompts]
        for prompt, reply in zip(prompts, replies, strict=True):
            wanted = self._parse(prompt)
            self._engine.submit(Job(self.tokens(prompt), wanted.sampling, reply))
        return [reply.answer() for reply in replies]

    def chat_tokens(self, messages: list[dict[str, str]]) -> list[int]:
        """A chat, rendered by the model's template, as tokens."""
        request = RawRequest({"messages": json.dumps(messages)}, {"max_tokens": 1})
        return self._prompts.encode(parse_generate(request, {}, N_CTX, stream_default=True))

    def _parse(self, prompt: str) -> Any:
        options = {"max_tokens": MAX_TOKENS, "temperature": 0.0, "logprobs": 2, "stop": []}
        return parse_generate(RawRequest({"prompt": prompt}, options), {}, N_CTX, stream_default=True)


@dataclass(frozen=True)
class Pair:
    """Both on one file."""

    ours: Ours
    peer: LlamaServer


@pytest.fixture(scope="module", params=["demo", "tiny-dense", "tiny-hybrid"])
def pair(
    request: pytest.FixtureRequest, wheel_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    del wheel_directory  # llama_cpp can be imported
    if not SERVER.exists():
        pytest.skip(f"llama-server is not built ({SERVER}): `python -m bench.peers.llama_server` builds it, in minutes")
    gguf = models.file(models.MODELS[request.param])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = llama_server.command(gguf, port, SLOTS, N_CTX, THREADS, cache_mib=0)
    path = tmp_path_factory.mktemp("parity") / "log"
    with path.open("w") as log:
        process = subprocess.Popen([str(SERVER), *command[1:]], stdout=log, stderr=subprocess.STDOUT)
    with ExitStack() as opened:
        opened.callback(process.wait, SECONDS)
        opened.callback(process.terminate)
        peer = LlamaServer(port)
        _wait(peer, process, path)
        yield Pair(_open(gguf, opened), peer)


def _open(gguf: Path, opened: ExitStack) -> Ours:
    from llamacpp_backend.llama.model import Model
    from llamacpp_backend.llama.runner import ContextOptions, LlamaRunner

    model = Model(gguf, lambda _level, _line: None)
    opened.callback(model.close)
    runner = LlamaRunner(model, ContextOptions(n_ctx=N_CTX, n_slots=SLOTS, n_threads=THREADS))
    opened.callback(runner.close)
    engine = Engine(runner, EngineLimits(QUEUE_SIZE, CacheLimits(n_bytes=2**24, checkpoint_every=256)), print)
    opened.callback(engine.close)
    chat = ChatTemplate(model.chat_renderer(), model.control_strings())
    return Ours(engine, PromptEncoder(model, chat, N_CTX))


def _wait(peer: LlamaServer, process: subprocess.Popen[bytes], log: Path) -> None:
    give_up = time.monotonic() + SECONDS
    while True:
        try:
            peer.call("/health")
            return
        except (urllib.error.URLError, ConnectionError):
            assert process.poll() is None, log.read_text(errors="replace")[-2000:]
            assert time.monotonic() < give_up, "llama-server does not answer"
            time.sleep(0.05)


def assert_same(ours: Answer, peer: Answer, near_tie: float = SAME_CHUNKS) -> None:
    """The same tokens, or a first difference where the model had no favourite: from there on both go their own way."""
    for place, (token, other) in enumerate(zip(ours.tokens, peer.tokens, strict=False)):
        if token != other:
            lead = ours.leads[place]
            assert lead < near_tie, (
                f"token {place} is {token}, llama-server's {other}; the best was ahead by {lead:.4f}"
            )
            return
    assert ours.completion_tokens == peer.completion_tokens == len(peer.tokens)
    # llama-server lists the token that ends an answer too; the engine counts it, but says nothing of it.
    assert len(peer.tokens) - len(ours.tokens) in (0, 1)
    assert ours.text == peer.text


def test_prompts_are_cut_into_the_same_tokens(pair: Pair) -> None:
    for prompt in PROMPTS:
        body = {"content": prompt, "add_special": True, "parse_special": False}
        assert pair.ours.tokens(prompt) == pair.peer.call("/tokenize", body)["tokens"]


def test_same_tokens_one_after_another(pair: Pair) -> None:
    for prompt in PROMPTS:
        (ours,) = pair.ours.answers([prompt])
        peer = pair.peer.answer(pair.ours.tokens(prompt))
        assert ours.prompt_tokens == peer.prompt_tokens == len(pair.ours.tokens(prompt))
        assert_same(ours, peer)


def test_same_tokens_when_ours_are_under_way_at_once(pair: Pair) -> None:
    for prompt, ours in zip(PROMPTS, pair.ours.answers(PROMPTS), strict=True):
        assert_same(ours, pair.peer.answer(pair.ours.tokens(prompt)), OTHER_CHUNKS)


def test_chats_are_rendered_alike(pair: Pair) -> None:
    for messages in CONVERSATIONS:
        rendered = pair.peer.call("/apply-template", {"messages": messages})["prompt"]
        body = {"content": rendered, "add_special": True, "parse_special": True}
        assert pair.ours.chat_tokens(messages) == pair.peer.call("/tokenize", body)["tokens"]


def test_a_difference_is_seen() -> None:
    ours = Answer("ab", [1, 2], 1, 2, leads=[1.0, 1.0])
    with pytest.raises(AssertionError, match="token 1 is 2, llama-server's 3"):
        assert_same(ours, Answer("ac", [1, 3], 1, 2))
    with pytest.raises(AssertionError):
        assert_same(ours, Answer("abc", [1, 2, 3], 1, 3))
    assert_same(Answer("ab", [1, 2], 1, 3), Answer("ab", [1, 2, 0], 1, 3))
    ours.leads[1] = SAME_CHUNKS / 2
    assert_same(ours, Answer("ac", [1, 3], 1, 2))
