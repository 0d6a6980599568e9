"""Sampling parameters of a request: names, ranges, defaults, and the checks that stand before any native call.

PARAMETERS is the one table of them; docs/parameters.md is made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .errors import BadRequest
from .rules import Biases, Flag, Number, Rule, Strings, Text, Tokens

DEFAULT_MAX_TOKENS = 256
MAX_ANSWERS = 16
MAX_TIMEOUT_MS = 86_400_000
MAX_LOGPROBS = 20
N_SEEDS = 2**32 - 1  # llama.cpp's have 32 bits, and the highest of them means "draw one"
MAX_CONSTRAINT_BYTES = 65_536  # of a JSON schema, and of GBNF text
# Below it a division of logits would leave the range of a float; nothing but the best token has a chance there anyway.
LEAST_TEMPERATURE = 0.001


@dataclass(frozen=True)
class Parameter:
    """One parameter. `data_type`, `dims`: of the input tensor of the same name."""

    name: str
    data_type: str
    rule: Rule
    default: object
    meaning: str
    dims: tuple[int, ...] = (1,)


PARAMETERS: tuple[Parameter, ...] = (
    Parameter(
        "max_tokens",
        "TYPE_INT32",
        Tokens(1),
        DEFAULT_MAX_TOKENS,
        "most tokens of an answer; a small n_ctx lowers the default",
    ),
    Parameter(
        "min_tokens",
        "TYPE_INT32",
        Tokens(0),
        0,
        "tokens before the model may end its answer, at most max_tokens; stop strings end it all the same",
    ),
    Parameter(
        "temperature",
        "TYPE_FP32",
        Number(float, 0, 10),
        0.7,
        f"flattens (above 1) or sharpens the distribution; below {LEAST_TEMPERATURE}: greedy, the likeliest token",
    ),
    Parameter("top_k", "TYPE_INT32", Number(int, -1, 1_000_000), 40, "only the k likeliest tokens; -1 and 0: off"),
    Parameter(
        "top_p",
        "TYPE_FP32",
        Number(float, 0, 1, above_low=True),
        0.95,
        "only the likeliest tokens that have this share of the probability together; 1: off",
    ),
    Parameter(
        "min_p", "TYPE_FP32", Number(float, 0, 1), 0.05, "only tokens with this share of the likeliest one's; 0: off"
    ),
    Parameter(
        "typical_p",
        "TYPE_FP32",
        Number(float, 0, 1, above_low=True),
        1.0,
        "only tokens whose surprise is near the expected one, with this share together; 1: off",
    ),
    Parameter(
        "top_n_sigma",
        "TYPE_FP32",
        Number(float, -1, 100),
        0.0,
        "only tokens whose logit is within n standard deviations of the best; 0 and below: off",
    ),
    Parameter(
        "repetition_penalty",
        "TYPE_FP32",
        Number(float, 0.01, 10),
        1.0,
        "divides the logit of tokens that have occurred; 1: off",
    ),
    Parameter(
        "presence_penalty", "TYPE_FP32", Number(float, -2, 2), 0.0, "taken from the logit of tokens that have occurred"
    ),
    Parameter(
        "frequency_penalty",
        "TYPE_FP32",
        Number(float, -2, 2),
        0.0,
        "taken from a token's logit for each time it has occurred",
    ),
    Parameter(
        "penalty_last_n",
        "TYPE_INT32",
        Tokens(-1),
        -1,
        "last tokens, of prompt and answer, that the three penalties look at; -1: all of them, 0: off",
    ),
    Parameter(
        "dry_multiplier",
        "TYPE_FP32",
        Number(float, 0, 10),
        0.0,
        "DRY, against repeated sequences: its strength; 0: off",
    ),
    Parameter(
        "dry_base", "TYPE_FP32", Number(float, 1, 10), 1.75, "DRY: growth of the penalty with the repeated length"
    ),
    Parameter(
        "dry_allowed_length", "TYPE_INT32", Tokens(0), 2, "DRY: longest repetition, in tokens, that costs nothing"
    ),
    Parameter(
        "dry_penalty_last_n", "TYPE_INT32", Tokens(-1), -1, "DRY: last tokens that it looks at; -1: all of them, 0: off"
    ),
    Parameter(
        "dry_sequence_breakers",
        "TYPE_STRING",
        Strings(16, 40),
        ("\n", ":", '"', "*"),
        "DRY: a repetition does not go on across these",
        (-1,),
    ),
    Parameter(
        "xtc_probability",
        "TYPE_FP32",
        Number(float, 0, 1),
        0.0,
        "XTC, exclude top choices: chance for each token that it acts; 0: off",
    ),
    Parameter(
        "xtc_threshold",
        "TYPE_FP32",
        Number(float, 0, 1),
        0.1,
        "XTC: of the tokens above this probability only the least likely stays; above 0.5: off",
    ),
    Parameter(
        "mirostat",
        "TYPE_INT32",
        Number(int, 0, 2),
        0,
        "1 or 2: mirostat of that version in place of top_k, top_p, min_p, typical_p, top_n_sigma and XTC; 0: off",
    ),
    Parameter(
        "mirostat_tau",
        "TYPE_FP32",
        Number(float, 0, 100, above_low=True),
        5.0,
        "mirostat: the surprise it aims at, in bits",
    ),
    Parameter(
        "mirostat_eta", "TYPE_FP32", Number(float, 0, 1, above_low=True), 0.1, "mirostat: how fast it corrects itself"
    ),
    Parameter(
        "logit_bias",
        "TYPE_STRING",
        Biases(),
        (),
        "added to the logits of tokens before anything else; -100 is as good as never, 100 as good as always",
    ),
    Parameter(
        "seed",
        "TYPE_UINT64",
        Number(int, 0, N_SEEDS - 1),
        None,
        "of the random choices; without one it is drawn, and reported",
    ),
    Parameter(
        "stop",
        "TYPE_STRING",
        Strings(16, 256),
        ("</s>", "###"),
        "the answer ends before the first of these; as a request parameter one string; a single empty one: none",
        (-1,),
    ),
    Parameter("ignore_eos", "TYPE_BOOL", Flag(), False, "the model can't end its answer: max_tokens or stop does"),
    Parameter("n", "TYPE_INT32", Number(int, 1, MAX_ANSWERS), 1, "answers to the one prompt; at most n_parallel"),
    Parameter(
        "logprobs",
        "TYPE_INT32",
        Number(int, -1, MAX_LOGPROBS),
        None,
        "report each token's log probability, and those of this many likeliest tokens; -1: don't",
    ),
    Parameter(
        "json_schema",
        "TYPE_STRING",
        Text(MAX_CONSTRAINT_BYTES),
        None,
        'the answer is JSON that fits this JSON schema (JSON text); {"type": "object"}: any object; empty: none',
    ),
    Parameter(
        "grammar",
        "TYPE_STRING",
        Text(MAX_CONSTRAINT_BYTES),
        None,
        "the answer fits this GBNF grammar; only where the operator has set engine.allow_grammar; empty: none",
    ),
    Parameter(
        "timeout_ms",
        "TYPE_INT32",
        Number(int, 0, MAX_TIMEOUT_MS),
        0,
        "milliseconds after which the answer ends with what there is; 0: the engine's timeout_ms, which is the ceiling",
    ),
    Parameter(
        "cache_prompt", "TYPE_BOOL", Flag(), True, "whether this prompt may use, and enter, the engine's prompt cache"
    ),
)

SAMPLING_NAMES = tuple(parameter.name for parameter in PARAMETERS)

# Of parameters that have one: absence is the default of the others.
DEFAULTS: dict[str, object] = {item.name: item.default for item in PARAMETERS if item.default is not None}


@dataclass(frozen=True)
class Sampling:
    """Checked sampling parameters; see PARAMETERS for their meaning and ranges.

    temperature 0: greedy. top_k and top_n_sigma 0 or less: off. penalty_last_n, dry_penalty_last_n -1: all tokens.
    seed None: draw one. logprobs None: none wanted. logit_bias: pairs (token id, bias). timeout_ms 0: no deadline.
    json_schema, grammar: as the client wrote them, until `constrain.Constraints.apply` has made of either the checked
    GBNF text in `grammar` (root rule `root`) and left json_schema None; samplers look at `grammar` alone.
    """

    max_tokens: int
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalty_last_n: int
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: tuple[str, ...]
    xtc_probability: float
    xtc_threshold: float
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    logit_bias: tuple[tuple[int, float], ...]
    stop: tuple[str, ...]
    ignore_eos: bool
    n: int
    timeout_ms: int
    cache_prompt: bool
    seed: int | None = None
    logprobs: int | None = None
    json_schema: str | None = None
    grammar: str | None = None


def parse_sampling(given: Mapping[str, object], model_defaults: Mapping[str, object], n_ctx: int) -> Sampling:
    """Check `given` and fill the rest from the model's defaults, then from DEFAULTS.

    Raises BadRequest that names the parameter, its value and what is allowed. What needs more than n_ctx to be
    checked is left to `fit_to_model`, the constraint to `constrain`.
    """
    values = {**model_defaults, **given}
    unknown = sorted(set(values) - set(SAMPLING_NAMES))
    if unknown:
        raise BadRequest(f"unknown parameter '{unknown[0]}'; allowed are {', '.join(SAMPLING_NAMES)}")
    # A request that brings one kind of constraint replaces the model's, of whichever kind.
    if given.get("json_schema") or given.get("grammar"):
        for name in {"json_schema", "grammar"} - set(given):
            values.pop(name, None)
    # The built-in default must not make a model with a smaller context refuse every request.
    checked: dict[str, Any] = {**DEFAULTS, "max_tokens": min(DEFAULT_MAX_TOKENS, n_ctx)}
    for parameter in PARAMETERS:
        if parameter.name in values:
            rule = parameter.rule.within(n_ctx) if isinstance(parameter.rule, Tokens) else parameter.rule
            checked[parameter.name] = rule.check(parameter.name, values[parameter.name])
    if checked["min_tokens"] > checked["max_tokens"]:
        if "min_tokens" in given:
            Number(int, 0, checked["max_tokens"], note=" (max_tokens)").check("min_tokens", checked["min_tokens"])
        checked["min_tokens"] = checked["max_tokens"]  # a model's default: the client asked for less
    if checked["temperature"] < LEAST_TEMPERATURE:
        checked["temperature"] = 0.0
    if checked.get("logprobs") == -1:
        checked["logprobs"] = None
    if checked.get("json_schema") and checked.get("grammar"):
        raise BadRequest("json_schema and grammar are both given; give one of them")
    return Sampling(**checked)


def fit_to_model(sampling: Sampling, *, n_vocab: int, n_parallel: int, timeout_ms: int) -> Sampling:
    """Check what depends on the loaded model and its engine; returns it with the deadline that holds.

    `n_vocab`: tokens 0 to n_vocab - 1 exist. `n_parallel`: answers at once. `timeout_ms`: the engine's ceiling,
    0 = none. Raises BadRequest.
    """
    for token, _ in sampling.logit_bias:
        if token >= n_vocab:
            raise BadRequest(f"logit_bias has token {token}; allowed are token ids from 0 to {n_vocab - 1}")
    if n_parallel < MAX_ANSWERS:
        Number(int, 1, n_parallel, note=" (n_parallel)").check("n", sampling.n)
    if not timeout_ms:
        return sampling
    Number(int, 0, timeout_ms, note=" (the engine's timeout_ms)").check("timeout_ms", sampling.timeout_ms)
    return sampling if sampling.timeout_ms else replace(sampling, timeout_ms=timeout_ms)
