"""Settings of a model version, read once from its model.json: typed, ranges checked, unknown keys refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .constrain import compiling
from .errors import BadRequest, LoadError
from .parameters import MAX_ANSWERS, MAX_TIMEOUT_MS, SAMPLING_NAMES, fit_to_model, parse_sampling
from .rules import MAX_N_CTX, Choice, Computed, Flag, Number, Rule

SCHEMA = 1
MAX_N_VOCAB = 2**31 - 1  # what llama.cpp's token ids can hold

_QUANTIZED = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
CACHE_TYPES = ("f32", "f16", "bf16", *_QUANTIZED)


@dataclass(frozen=True)
class Setting:
    """One key of "engine". `default`: the value, or how it is computed, in words, when the key is absent."""

    name: str
    rule: Rule
    default: str
    meaning: str


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "n_ctx",
        Computed(Number(int, 16, MAX_N_CTX, note=" tokens")),
        "the model's training context, at most 4096, less where memory is short",
        "tokens that one request may use, prompt and answer together",
    ),
    Setting(
        "n_parallel",
        Computed(Number(int, 1, 64)),
        "two for each thread, 4 to 16, fewer where memory is short",
        "answers made at once; each has n_ctx tokens of its own in the KV cache",
    ),
    Setting(
        "kv_unified",
        Flag(),
        "false",
        "all requests share one pool of n_ctx * n_parallel tokens, and copies of a prefix cost nothing on dense models",
    ),
    Setting(
        "n_batch", Computed(Number(int, 16, 8192, note=" tokens")), "512", "most tokens in one step, over all requests"
    ),
    Setting(
        "n_ubatch",
        Computed(Number(int, 16, 8192, note=" tokens")),
        "n_batch",
        "tokens computed together; fewer take less memory and are slower; at most n_batch",
    ),
    Setting(
        "n_threads",
        Computed(Number(int, 1, 512)),
        "the CPUs that affinity and the service's CPU quota allow",
        "compute threads",
    ),
    Setting("cache_type_k", Choice(CACHE_TYPES), "f16", "type of the keys in the KV cache"),
    Setting(
        "cache_type_v",
        Choice(CACHE_TYPES),
        "f16",
        "type of the values in the KV cache; a quantized one needs flash attention",
    ),
    Setting(
        "flash_attention",
        Choice(("auto", "on", "off"), {True: "on", False: "off"}),
        "auto",
        "auto: where llama.cpp has it for the model",
    ),
    Setting(
        "prompt_cache_mib",
        Number(int, 0, 1_048_576, note=" MiB"),
        "a quarter of the memory that is left, at most 2048",
        "memory for prompts that may come again; 0: only what the KV cache still holds is used again",
    ),
    Setting(
        "checkpoint_every",
        Number(int, 0, MAX_N_CTX, note=" tokens"),
        "256",
        "distance of the checkpoints that a model with a recurrent state needs to use a part of a prompt again; "
        "0: only at turns and at the prompt's end",
    ),
    Setting(
        "max_added_latency_ms",
        Computed(Number(int, 1, 60_000, note=" ms")),
        "one and a half times what a token takes without it",
        "how much later the next token of a running answer may come because a new prompt is being read",
    ),
    Setting("queue_size", Computed(Number(int, 1, 512)), "64", "requests that may wait; one more is refused at once"),
    Setting(
        "timeout_ms",
        Number(int, 0, MAX_TIMEOUT_MS, note=" ms"),
        "0",
        "longest time of a request, waiting included, and the default of its timeout_ms; 0: no limit",
    ),
    Setting(
        "allow_grammar",
        Flag(),
        "false",
        "whether requests may bring GBNF text; for clients you trust: a grammar can be written that is slow to follow",
    ),
)
_SETTINGS = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True)
class Place:
    """Where a model version lies and what it is: `kind` is "engine" or "front"."""

    kind: str
    model_name: str
    version_dir: Path

    @property
    def version(self) -> int:
        """The model's version: its directory's name."""
        return int(self.version_dir.name)


@dataclass(frozen=True)
class EngineSettings:
    """Values of the "engine" object; 0 in a number that may be computed, or None: computed. See SETTINGS."""

    n_ctx: int = 0
    n_parallel: int = 0
    kv_unified: bool = False
    n_batch: int = 0
    n_ubatch: int = 0
    n_threads: int = 0
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attention: str = "auto"
    prompt_cache_mib: int | None = None
    checkpoint_every: int | None = None
    max_added_latency_ms: int = 0
    queue_size: int = 0
    timeout_ms: int = 0
    allow_grammar: bool = False


@dataclass(frozen=True)
class ModelSettings:
    """An engine's model.json."""

    name: str
    version: int
    revision: str
    engine: EngineSettings
    defaults: Mapping[str, object]


def read_engine_settings(path: Path) -> ModelSettings:
    """Read an engine's model.json. Raises LoadError that names the file, the key, the value and what is allowed."""
    data = _read_object(path)
    _refuse_unknown(path, "", data, ("schema", "name", "version", "revision", "engine", "defaults"))
    if data.get("schema") != SCHEMA:
        raise LoadError(f"{path}: schema is {data.get('schema')!r}; this backend reads schema {SCHEMA}")
    name, version, revision = data.get("name"), data.get("version"), data.get("revision")
    if not isinstance(name, str) or not name:
        raise LoadError(f"{path}: name is {name!r}; allowed is a string that is not empty")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise LoadError(f"{path}: version is {version!r}; allowed is an integer of 1 or more")
    if not isinstance(revision, str) or not re.fullmatch(r"[0-9a-f]{12}", revision):
        raise LoadError(f"{path}: revision is {revision!r}; allowed are 12 hexadecimal digits")
    engine = _read_engine(path, _sub_object(path, data, "engine"))
    defaults = _sub_object(path, data, "defaults")
    _refuse_unknown(path, "defaults.", defaults, SAMPLING_NAMES)
    # The context is not known yet: only its upper bound is applied here, the model's own at load.
    check_defaults(
        path,
        defaults,
        engine.n_ctx or MAX_N_CTX,
        n_parallel=engine.n_parallel or MAX_ANSWERS,
        timeout_ms=engine.timeout_ms,
    )
    if defaults.get("grammar") and not engine.allow_grammar:
        raise LoadError(f"{path}: defaults.grammar is set while engine.allow_grammar is false; allowed is both or none")
    return ModelSettings(name, version, revision, engine, defaults)


def check_defaults(
    path: Path,
    defaults: Mapping[str, object],
    n_ctx: int,
    *,
    n_vocab: int = MAX_N_VOCAB,
    n_parallel: int = MAX_ANSWERS,
    timeout_ms: int = 0,
) -> None:
    """Check a model's sampling defaults against model and engine; see parameters.fit_to_model. Raises LoadError."""
    try:
        sampling = parse_sampling({}, defaults, n_ctx)
        fit_to_model(sampling, n_vocab=n_vocab, n_parallel=n_parallel, timeout_ms=timeout_ms)
        # Whether llama.cpp takes it, the first request will tell; that it is read here spares most such surprises.
        for kind, text in ((compiling.SCHEMA, sampling.json_schema), (compiling.GRAMMAR, sampling.grammar)):
            if text is not None:
                compiling.gbnf_of(kind, text)
    except BadRequest as error:
        raise LoadError(f"{path}: defaults: {error}") from error


def read_front_settings(path: Path) -> str:
    """Read a front's model.json: the name of the engine's Triton model. Raises LoadError."""
    data = _read_object(path)
    _refuse_unknown(path, "", data, ("engine_model",))
    name = data.get("engine_model")
    if not isinstance(name, str) or not name:
        raise LoadError(f"{path}: engine_model is {name!r}; allowed is the name of the engine's model")
    return name


def _read_engine(path: Path, data: Mapping[str, Any]) -> EngineSettings:
    _refuse_unknown(path, "engine.", data, tuple(_SETTINGS))
    try:
        engine = EngineSettings(**{key: _SETTINGS[key].rule.check(f"engine.{key}", data[key]) for key in data})
        _check_together(engine)
    except BadRequest as error:
        raise LoadError(f"{path}: {error}") from error
    return engine


def _check_together(engine: EngineSettings) -> None:
    """What no single range can say; only of values that are set. Raises BadRequest."""
    if engine.n_batch and engine.n_ubatch > engine.n_batch:
        raise BadRequest(f"engine.n_ubatch is {engine.n_ubatch}; allowed is at most {engine.n_batch} (n_batch)")
    if engine.n_batch and engine.n_parallel > engine.n_batch:
        raise BadRequest(
            f"engine.n_batch is {engine.n_batch}; allowed is {engine.n_parallel} (n_parallel) or more, "
            "as each step has a token of every request"
        )
    if engine.flash_attention == "off" and engine.cache_type_v in _QUANTIZED:
        raise BadRequest(
            f"engine.cache_type_v is {engine.cache_type_v!r} while engine.flash_attention is off; "
            "allowed without flash attention are f32, f16, bf16"
        )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LoadError(f"{path}: can't be read: {error.strerror}") from error
    except ValueError as error:
        raise LoadError(f"{path}: is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise LoadError(f"{path}: holds {type(data).__name__}; allowed is a JSON object")
    return data


def _sub_object(path: Path, data: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key, {})
    if not isinstance(value, dict):
        raise LoadError(f"{path}: {key} is {value!r}; allowed is a JSON object")
    return value


def _refuse_unknown(path: Path, prefix: str, data: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    unknown = sorted(set(data) - set(allowed))
    if unknown:
        raise LoadError(f"{path}: unknown key '{prefix}{unknown[0]}'; allowed are {', '.join(allowed)}")
