"""Loading files, good and bad; tokens and their texts; llama.cpp's log; and in what order things may be closed."""

from __future__ import annotations

import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from llamacpp_backend.errors import EngineFailure, LoadError

if TYPE_CHECKING:
    from llamacpp_backend.llama.model import Model
    from llamacpp_backend.llama.runner import LlamaRunner

Child = Callable[[str], subprocess.CompletedProcess[str]]
Models = dict[str, "Model"]
OpenRunner = Callable[..., "LlamaRunner"]

DEMO = Path(__file__).resolve().parents[2] / "files" / "demo_model" / "demo.gguf"

# As the product opens a file, up to a first answer.
OPEN = """
from pathlib import Path
from llamacpp_backend.engine.runner import Chunk
from llamacpp_backend.errors import LoadError
from llamacpp_backend.llama.file import read_header
from llamacpp_backend.llama.model import Model
from llamacpp_backend.llama.runner import ContextOptions, LlamaRunner
path = Path({path!r})
try:
    read_header(path)
    model = Model(path, lambda _level, _line: None)
    runner = LlamaRunner(model, ContextOptions(n_ctx=256, n_slots=2))
    runner.warm_up()
    runner.decode([Chunk(0, model.tokenize("What is", add_special=True, parse_special=False), 0, True)])
    print("works")
except LoadError as error:
    print(error)
"""


def bad_files() -> dict[str, bytes]:
    demo = DEMO.read_bytes()
    return {
        "empty": b"",
        "page": b"<!DOCTYPE html>\n<html><body>404 Not Found</body></html>\n",
        "half": demo[: len(demo) // 2],
        "one byte short": demo[:-1],
        "header": demo[:64],
        "eight": demo[:8],
        "version": b"GGUF\x01\x00\x00\x00" + demo[8:],
        "counts": demo[:8] + b"\xff" * 16 + demo[24:],
        "noise": demo[:24] + bytes(range(256)) * 64,
        "architecture": demo.replace(b"\x05\0\0\0\0\0\0\0qwen3", b"\x05\0\0\0\0\0\0\0other", 1),
        "token twice": demo.replace(b"\x01\0\0\0\0\0\0\0#", b"\x01\0\0\0\0\0\0\0j", 1),
        "tensor": demo.replace(b"token_embd", b"token_what", 1),
    }


@pytest.mark.parametrize("name", bad_files())
def test_file_that_is_no_model(child: Child, tmp_path: Path, name: str) -> None:
    """In a process of its own: llama.cpp reads some of these, and must not end Triton's."""
    path = tmp_path / f"{name}.gguf"
    path.write_bytes(bad_files()[name])
    done = child(OPEN.format(path=str(path)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{path}: ")
    assert "it gave no reason" not in done.stdout


# Each of these ends the process, or never comes back, when llama.cpp gets to see it.
DANGEROUS = [
    ("dense", "block_count", 0),
    ("dense", "block_count", 100_000),
    ("dense", "attention.layer_norm_rms_epsilon", -1.0),
    ("dense", "attention.layer_norm_rms_epsilon", float("nan")),
    ("hybrid", "full_attention_interval", 0),
    ("hybrid", "rope.dimension_count", 0),
    ("hybrid", "rope.dimension_count", 3),
    ("hybrid", "rope.dimension_count", 100_000),
    ("hybrid", "rope.dimension_sections", 100_000),
    ("hybrid", "ssm.inner_size", 0),
    ("hybrid", "ssm.inner_size", 1),
    ("hybrid", "ssm.inner_size", 100_000),
]


@pytest.mark.parametrize(("kind", "key", "value"), DANGEROUS)
def test_metadata_that_would_end_the_process(
    child: Child, tmp_path: Path, llama: Models, kind: str, key: str, value: float
) -> None:
    content = bytearray(llama[kind].path.read_bytes())
    name = f"{llama[kind].architecture}.{key}".encode()
    place = content.index(struct.pack("<Q", len(name)) + name) + 8 + len(name) + 4
    if key.endswith("sections"):  # an array: its type and its length come first
        place += 12
    struct.pack_into("<f" if isinstance(value, float) else "<I", content, place, value)
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    done = child(OPEN.format(path=str(path)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{path}: {name.decode()} is ")


@pytest.mark.parametrize("kind", ["demo", "dense", "hybrid"])
def test_file_that_is_a_model(child: Child, llama: Models, kind: str) -> None:
    done = child(OPEN.format(path=str(llama[kind].path)))
    assert (done.returncode, done.stdout) == (0, "works\n"), done.stderr


def test_model_loads_after_a_failed_load(wheel_directory: Path, tmp_path: Path) -> None:
    from llamacpp_backend.llama.model import Model

    path = tmp_path / "half.gguf"
    path.write_bytes(DEMO.read_bytes()[:1_000_000])
    with pytest.raises(LoadError, match=r"half\.gguf: llama\.cpp can't load it: .+"):
        Model(path, lambda _level, _line: None)
    model = Model(DEMO, lambda _level, _line: None)
    assert model.architecture == "qwen3"
    model.close()
    model.close()  # again, and nothing is freed twice


@pytest.mark.parametrize("kind", ["llama_model_has_encoder", "llama_model_is_diffusion"])
def test_models_of_other_kinds(wheel_directory: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    import llama_cpp
    from llamacpp_backend.llama.model import Model

    monkeypatch.setattr(llama_cpp, kind, lambda _model: True)
    with pytest.raises(LoadError, match="an encoder or of diffusion; allowed are those that only decode"):
        Model(DEMO, lambda _level, _line: None)


def test_memory_is_as_reckoned(llama: Models, open_runner: OpenRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches and states to the byte of what llama.cpp says it has allocated, buffers at most."""
    from llamacpp_backend.llama import log
    from llamacpp_backend.llama.file import memory_needs, read_header

    lines: list[str] = []
    monkeypatch.setattr(log._bridge, "log", lambda _level, line: lines.append(line))

    def mib(what: str) -> float:
        return sum(float(line.split("=")[1].split()[0]) for line in lines if f"{what} buffer size" in line)

    for name in ("dense", "hybrid"):
        for cache, flash, n_ubatch in (("f16", "auto", 64), ("q8_0", "on", 256), ("f16", "off", 128)):
            lines.clear()
            options: dict[str, Any] = {
                "cache_type_k": cache,
                "cache_type_v": cache,
                "flash_attention": flash,
                "n_ubatch": n_ubatch,
            }
            open_runner(name, n_ctx=1000, n_slots=3, **options)
            needs = memory_needs(read_header(llama[name].path), **options)
            recurrent = mib("RS")
            assert mib("KV") == pytest.approx(needs.per_token * 3 * 1024 / 2**20, abs=0.01)
            logits = 4 * llama[name].n_vocab
            assert recurrent == pytest.approx(3 * (needs.per_slot - 2 * logits) / 2 / 2**20, abs=0.01)
            assert (recurrent > 0) == (name == "hybrid")
            buffers = needs.fixed + needs.per_view_token * 1024 + needs.per_slot * 3
            assert 0 < mib("compute") + mib("output") + recurrent <= buffers / 2**20
            assert needs.weights <= llama[name].bytes * 1.01


def test_model_can_not_be_closed_under_a_context(wheel_directory: Path) -> None:
    from llamacpp_backend.llama.model import Model
    from llamacpp_backend.llama.runner import ContextOptions, LlamaRunner

    model = Model(DEMO, lambda _level, _line: None)
    runners = [LlamaRunner(model, ContextOptions(n_ctx=64)) for _ in range(2)]
    runners[0].close()
    with pytest.raises(EngineFailure, match="the model has 1 open contexts; they must be closed before it"):
        model.close()
    runners[1].warm_up()
    runners[1].close()
    model.close()
    with pytest.raises(LoadError, match="the model is closed"):
        LlamaRunner(model, ContextOptions(n_ctx=64))


def test_samplers_may_outlive_context_and_model(child: Child) -> None:
    done = child(f"""
from pathlib import Path
from llamacpp_backend.llama.model import Model
from llamacpp_backend.llama.runner import ContextOptions, LlamaRunner
from llamacpp_backend.parameters import parse_sampling
model = Model(Path({str(DEMO)!r}), lambda _level, _line: None)
runner = LlamaRunner(model, ContextOptions(n_ctx=64))
given = {{"grammar": "root ::= [a-z]*", "dry_multiplier": 1.0, "repetition_penalty": 1.1}}
samplers = [runner.sampler(parse_sampling(given, {{}}, 64), [1]) for _ in range(3)]
runner.close()
samplers.pop().close()
model.close()
samplers.pop().close()
print("survived")
""")
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr


@pytest.mark.parametrize("token", [-1, 1059, 10**6, 2**31 - 1, -(2**31)])
def test_tokens_beyond_the_vocabulary(open_runner: OpenRunner, token: int) -> None:
    runner = open_runner("demo")
    with pytest.raises(EngineFailure, match=f"token {token} is not in the vocabulary"):
        runner.token_bytes(token)
    assert not runner.is_end(token)


def test_every_token_has_its_bytes(llama: Models) -> None:
    model = llama["demo"]
    control = {model.tokenize(text, add_special=False, parse_special=True)[0] for text in model.control_strings()}
    assert control == model.control_tokens != set()
    assert set() != model.end_tokens <= control
    for _ in range(2):  # asked, then known
        for token in range(model.n_vocab):
            assert bool(model.token_bytes(token)) != (token in control)


@pytest.mark.parametrize("text", ["", "\0", "a\0b", "😊" * 1000, "\ufffd", "x" * 100_000, "\u202e\u0000é"])
def test_text_survives_tokens(llama: Models, text: str) -> None:
    tokens = llama["demo"].tokenize(text, add_special=False, parse_special=False)
    assert b"".join(map(llama["demo"].token_bytes, tokens)).decode() == text


def test_tokenizing_during_steps(llama: Models, open_runner: OpenRunner) -> None:
    """Prompts are tokenized by other threads while the engine's decodes."""
    from llamacpp_backend.engine.runner import Chunk

    model, text = llama["demo"], "What is the colour of the sky? " * 200
    expected = model.tokenize(text, add_special=True, parse_special=False)
    results: list[list[int]] = []
    threads = [
        threading.Thread(
            target=lambda: results.extend(model.tokenize(text, add_special=True, parse_special=False) for _ in range(9))
        )
        for _ in range(2)
    ]
    runner = open_runner("demo")
    for thread in threads:
        thread.start()
    for position in range(200):
        runner.decode([Chunk(0, [5], position, True)])
    for thread in threads:
        thread.join()
    assert results == [expected] * 18


def test_metadata_and_special_texts(llama: Models) -> None:
    model = llama["demo"]
    assert model.metadata("general.architecture") == model.architecture == "qwen3"
    assert model.metadata("no.such.key") is None
    assert len(model.metadata("tokenizer.chat_template") or "") > 100
    assert model.bos_text in ("", model.begin_text)
    assert model.end_text in model.control_strings()


def test_chats_are_rendered_by_the_models_template(llama: Models) -> None:
    render = llama["demo"].chat_renderer()
    rendered = render([{"role": "user", "content": "Hi"}])
    assert "Hi" in rendered
    assert rendered.count("<|im_start|>") == 2


def test_model_without_a_usable_template(llama: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama["demo"]
    for template, words in ((None, "the model has no chat template"), ("{% for", "chat template can't be compiled")):
        monkeypatch.setattr(model, "chat_template", lambda _name, template=template: template)
        with pytest.raises(LoadError, match=words):
            model.chat_renderer()


def test_log_bridge_joins_pieces_and_keeps_errors(wheel_directory: Path) -> None:
    from llamacpp_backend.llama.log import LogBridge

    lines: list[tuple[str, str]] = []
    bridge = LogBridge(lambda level, line: lines.append((level, line)))
    for level, text in [
        (2, b"load"),
        (5, b"ing ..."),
        (5, b"\n"),
        (4, b"no \xff\n"),
        (3, b"cut"),
        (1, b"next\n"),
        (2, b"\n"),
    ]:
        bridge.write(level, text)
    assert lines == [("info", "loading ..."), ("error", "no \ufffd"), ("warning", "cut"), ("debug", "next")]
    assert list(bridge.errors) == ["no \ufffd"]


def test_last_words_of_a_dying_process_are_logged(child: Child) -> None:
    """An assertion of llama.cpp ends the process; its text reaches the log all the same."""
    done = child(f"""
import llama_cpp
from pathlib import Path
from llamacpp_backend.llama.model import Model
model = Model(Path({str(DEMO)!r}), lambda level, line: print(level, line, flush=True))
params = llama_cpp.llama_context_default_params()
params.n_ctx, params.n_seq_max, params.n_outputs_max = 64, 4, 1
llama_cpp.llama_init_from_model(model.handle, params)
""")
    assert done.returncode == -6
    assert "error " in done.stdout
    assert "GGML_ASSERT" in done.stdout.splitlines()[-1]


def test_types_of_tensors_are_as_in_llama_cpp(wheel_directory: Path) -> None:
    import ctypes

    import llama_cpp
    from llamacpp_backend.llama.gguf import TYPES

    library = llama_cpp.llama_cpp._lib
    library.ggml_blck_size.restype, library.ggml_type_size.restype = ctypes.c_int64, ctypes.c_size_t
    library.ggml_type_name.restype = ctypes.c_char_p
    known = {
        library.ggml_type_name(number).decode().lower(): (
            number,
            library.ggml_blck_size(number),
            library.ggml_type_size(number),
        )
        for number in range(llama_cpp.GGML_TYPE_COUNT)
        if library.ggml_type_size(number)
    }
    assert {name: tuple(kind) for name, kind in TYPES.items()} == known
