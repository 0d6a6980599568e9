"""Sampling parameters of a request: names, ranges, defaults, and the checks that stand before any native call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import BadRequest

MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 256


@dataclass(frozen=True)
class Number:
    """Allowed values of one numeric parameter: low..high, `low` itself excluded when `above_low`."""

    kind: type[int] | type[float]
    low: float
    high: float
    above_low: bool = False
    note: str = ""

    def allowed(self) -> str:
        """The range in words, for messages and documents."""
        what = "an integer" if self.kind is int else "a number"
        border = "above" if self.above_low else "from"
        return f"{what} {border} {self.low:g} to {int(self.high) if self.kind is int else self.high}{self.note}"

    def check(self, name: str, value: object) -> Any:
        """The value as int or float. Raises BadRequest for a wrong type, NaN, infinity or a value out of range."""
        types = (int,) if self.kind is int else (int, float)
        if isinstance(value, types) and not isinstance(value, bool):
            enough = value > self.low if self.above_low else value >= self.low
            if enough and value <= self.high:  # NaN is neither
                return self.kind(value)
        raise BadRequest(f"{name} is {_shown(value)}; allowed is {self.allowed()}")


# The upper limit of max_tokens is the model's n_ctx, known only once the model is loaded.
NUMBERS: dict[str, Number] = {
    "temperature": Number(float, 0, 10),
    "top_p": Number(float, 0, 1, above_low=True),
    "top_k": Number(int, -1, 1_000_000),
    "min_p": Number(float, 0, 1),
    "repetition_penalty": Number(float, 0, 10, above_low=True),
    "presence_penalty": Number(float, -2, 2),
    "frequency_penalty": Number(float, -2, 2),
    # llama.cpp's seeds have 32 bits, and the highest of them means "draw one".
    "seed": Number(int, 0, 2**32 - 2),
}

SAMPLING_NAMES = ("max_tokens", *NUMBERS, "stop")

DEFAULTS: dict[str, object] = {
    "max_tokens": 256,
    "temperature": 0.7,
    "top_p": 0.95,
    "top_k": 40,
    "min_p": 0.05,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "stop": ["</s>", "###"],
}


@dataclass(frozen=True)
class Sampling:
    """Checked sampling parameters. `seed` None: a fresh one is drawn. top_k 0 or less: off. temperature 0: greedy."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    stop: tuple[str, ...]
    seed: int | None = None


def parse_sampling(given: Mapping[str, object], model_defaults: Mapping[str, object], n_ctx: int) -> Sampling:
    """Check `given` and fill the rest from the model's defaults, then from DEFAULTS.

    Raises BadRequest that names the parameter, its value and what is allowed.
    """
    # The built-in default must not make a model with a smaller context refuse every request.
    fallback = {**DEFAULTS, "max_tokens": min(256, n_ctx)}
    values = {**fallback, **model_defaults, **given}
    unknown = sorted(set(values) - set(SAMPLING_NAMES))
    if unknown:
        raise BadRequest(f"unknown parameter '{unknown[0]}'; allowed are {', '.join(SAMPLING_NAMES)}")
    limits = {"max_tokens": Number(int, 1, n_ctx, note=" (n_ctx)"), **NUMBERS}
    numbers = {name: limits[name].check(name, values[name]) for name in limits if name in values}
    return Sampling(stop=_check_stop(values["stop"]), **numbers)


def _check_stop(value: object) -> tuple[str, ...]:
    """One string or a list of strings as a tuple; none is allowed and means that nothing but the model ends a text."""
    strings = [value] if isinstance(value, str) else value
    allowed = f"up to {MAX_STOP_STRINGS} strings of 1 to {MAX_STOP_LENGTH} characters"
    if not isinstance(strings, (list, tuple)) or not all(isinstance(item, str) for item in strings):
        raise BadRequest(f"stop is {_shown(value)}; allowed are {allowed}")
    if len(strings) > MAX_STOP_STRINGS:
        raise BadRequest(f"stop has {len(strings)} strings; allowed are {allowed}")
    for item in strings:
        if not 1 <= len(item) <= MAX_STOP_LENGTH:
            raise BadRequest(f"stop has a string of {len(item)} characters; allowed are {allowed}")
    return tuple(strings)


def _shown(value: object) -> str:
    """The value for a message, shortened: a client may send megabytes."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
