"""What values a parameter or a setting may have: rules that check a value and say in words what is allowed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from ctypes import c_float
from dataclasses import dataclass
from typing import Any, Protocol

from .errors import BadRequest

MAX_N_CTX = 1_048_576
MAX_BIASES = 1024
MAX_BIAS_BYTES = 65_536


class Rule(Protocol):
    """What values a parameter may have."""

    def allowed(self) -> str:
        """The values in words, for messages and documents."""

    def check(self, name: str, value: object) -> Any:
        """The value in its final type. Raises BadRequest that names the parameter, the value and what is allowed."""


@dataclass(frozen=True)
class Number:
    """Allowed values of one numeric parameter: low..high, `low` itself excluded when `above_low`."""

    kind: type[int] | type[float]
    low: float
    high: float
    above_low: bool = False
    note: str = ""

    def allowed(self) -> str:
        """The range in words."""
        what = "an integer" if self.kind is int else "a number"
        border = "above" if self.above_low else "from"
        return f"{what} {border} {self.low:g} to {int(self.high) if self.kind is int else self.high}{self.note}"

    def check(self, name: str, value: object) -> Any:
        """The value as int or float; NaN and infinity are refused as any other value out of range."""
        types = (int,) if self.kind is int else (int, float)
        if isinstance(value, types) and not isinstance(value, bool):
            low, high = self._bounds()
            enough = value > low if self.above_low else value >= low
            if enough and value <= high:  # NaN is neither
                return self.kind(value)
        raise BadRequest(f"{name} is {shown(value)}; allowed is {self.allowed()}")

    def _bounds(self) -> tuple[float, float]:
        """Both, wider where the FP32 number that stands for a bound in a tensor lies just outside of it."""
        if self.kind is int:
            return self.low, self.high
        low = self.low if self.above_low else min(self.low, c_float(self.low).value)
        return low, max(self.high, c_float(self.high).value)


@dataclass(frozen=True)
class Tokens:
    """A count of tokens: low..n_ctx, which is known only once the model is loaded."""

    low: int

    def allowed(self) -> str:
        """The range in words, for documents: messages give the number."""
        return f"an integer from {self.low} to n_ctx"

    def check(self, name: str, value: object) -> Any:
        """Against the highest context there can be; parse_sampling checks against the model's."""
        return self.within(MAX_N_CTX).check(name, value)

    def within(self, n_ctx: int) -> Number:
        """The range for a model with this context."""
        return Number(int, self.low, n_ctx, note=" (n_ctx)")


@dataclass(frozen=True)
class Computed:
    """A number, or 0 for one that the backend computes."""

    number: Number

    def allowed(self) -> str:
        """Both in words."""
        return f"0 (computed) or {self.number.allowed()}"

    def check(self, name: str, value: object) -> Any:
        """The number, or 0."""
        if value == 0 and type(value) is int:
            return 0
        try:
            return self.number.check(name, value)
        except BadRequest:
            raise BadRequest(f"{name} is {shown(value)}; allowed is {self.allowed()}") from None


@dataclass(frozen=True)
class Choice:
    """One of some words. `booleans`: the words that true and false stand for, as YAML reads `on` and `off` so."""

    words: tuple[str, ...]
    booleans: Mapping[bool, str] | None = None

    def allowed(self) -> str:
        """The words."""
        return f"one of {', '.join(self.words)}"

    def check(self, name: str, value: object) -> str:
        """One of the words."""
        if isinstance(value, bool) and self.booleans:
            return self.booleans[value]
        if isinstance(value, str) and value in self.words:
            return value
        raise BadRequest(f"{name} is {shown(value)}; allowed is {self.allowed()}")


@dataclass(frozen=True)
class Flag:
    """true or false."""

    def allowed(self) -> str:
        """Both values."""
        return "true or false"

    def check(self, name: str, value: object) -> bool:
        """A bool and nothing that merely looks like one."""
        if isinstance(value, bool):
            return value
        raise BadRequest(f"{name} is {shown(value)}; allowed is {self.allowed()}")


@dataclass(frozen=True)
class Strings:
    """One string, or a list of strings; a single empty one means none: requests can't hold an empty list."""

    most: int
    longest: int  # characters

    def allowed(self) -> str:
        """Count and length in words."""
        return f"up to {self.most} strings of 1 to {self.longest} characters"

    def check(self, name: str, value: object) -> tuple[str, ...]:
        """A tuple; an empty one is allowed."""
        strings = [value] if isinstance(value, str) else value
        if not isinstance(strings, (list, tuple)) or not all(isinstance(item, str) for item in strings):
            raise BadRequest(f"{name} is {shown(value)}; allowed are {self.allowed()}")
        if len(strings) == 1 and not strings[0]:
            return ()
        if len(strings) > self.most:
            raise BadRequest(f"{name} has {len(strings)} strings; allowed are {self.allowed()}")
        for item in strings:
            if not 1 <= len(item) <= self.longest:
                raise BadRequest(f"{name} has a string of {len(item)} characters; allowed are {self.allowed()}")
        return tuple(strings)


@dataclass(frozen=True)
class Text:
    """A text of bounded size; an empty one means none, so that a request can undo a model's default."""

    most: int  # bytes of UTF-8

    def allowed(self) -> str:
        """The size in words."""
        return f"text of at most {self.most} bytes"

    def check(self, name: str, value: object) -> str | None:
        """The text, None when empty."""
        if not isinstance(value, str):
            raise BadRequest(f"{name} is {shown(value)}; allowed is {self.allowed()}")
        size = byte_size(name, value)
        if size > self.most:
            raise BadRequest(f"{name} has {size} bytes; allowed is {self.allowed()}")
        return value or None


@dataclass(frozen=True)
class Biases:
    """A JSON object, as text, of token id -> what is added to the token's logit."""

    _token = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
    _bias = Number(float, -100, 100)

    def allowed(self) -> str:
        """Shape and size in words."""
        bias = self._bias.allowed()
        return f'JSON text of an object such as {{"15043": -100}}, up to {MAX_BIASES} token ids, each with {bias}'

    def check(self, name: str, value: object) -> tuple[tuple[int, float], ...]:
        """Pairs of token id and bias, by token id. `value`: JSON text, or (in a model's defaults) the object itself."""
        pairs = list(value.items()) if isinstance(value, dict) else self._parse(name, value)
        if len(pairs) > MAX_BIASES:
            raise BadRequest(f"{name} has {len(pairs)} token ids; allowed is {self.allowed()}")
        biases: dict[int, float] = {}
        for key, bias in pairs:
            if not isinstance(key, str) or not self._token.fullmatch(key):
                raise BadRequest(f"{name} has the key {shown(key)}; allowed are token ids such as '15043'")
            if int(key) in biases:
                raise BadRequest(f"{name} has token {key} twice; give it once")
            biases[int(key)] = self._bias.check(f"{name}[{key}]", bias)
        return tuple(sorted(biases.items()))

    def _parse(self, name: str, value: object) -> list[tuple[str, object]]:
        if not isinstance(value, str):
            raise BadRequest(f"{name} is {shown(value)}; allowed is {self.allowed()}")
        size = byte_size(name, value)
        if size > MAX_BIAS_BYTES:
            raise BadRequest(f"{name} has {size} bytes; allowed are at most {MAX_BIAS_BYTES}")
        if not value:
            return []
        try:
            # Pairs, not a dict: of two values for one token neither may win silently.
            pairs = json.loads(value, object_pairs_hook=_Pairs)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"{name} is not JSON ({error}); allowed is {self.allowed()}") from error
        if not isinstance(pairs, _Pairs):
            raise BadRequest(f"{name} is {shown(value)}; allowed is {self.allowed()}")
        return pairs


class _Pairs(list[tuple[str, object]]):
    """A JSON object, with keys that occur twice."""


def byte_size(name: str, text: str) -> int:
    """Length of the text's UTF-8. Raises BadRequest for half of a surrogate pair, which no UTF-8 can hold."""
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        half = ord(error.object[error.start])
        raise BadRequest(f"{name} holds half of a surrogate pair (\\u{half:x}); text must be whole") from error


def shown(value: object) -> str:
    """The value for a message, shortened: a client may send megabytes."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
