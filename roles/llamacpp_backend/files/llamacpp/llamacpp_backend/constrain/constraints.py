"""What a request's answer must fit: tried once, then remembered."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from dataclasses import replace
from typing import Protocol

from ..errors import BadRequest
from ..parameters import Sampling
from .compiling import GRAMMAR, SCHEMA

MAX_KEPT = 512
MAX_KEPT_BYTES = 16 * 2**20


class Trial(Protocol):
    """Compiles and tries a constraint; see helper.TrialProcess."""

    def run(self, kind: str, text: str) -> str:
        """The checked GBNF text. Raises BadRequest, Unavailable."""


class Constraints:
    """Turns `json_schema` and `grammar` of a request into checked GBNF text; threads may share it."""

    def __init__(self, trial: Trial, *, allow_grammar: bool) -> None:
        self._trial = trial
        self._allow_grammar = allow_grammar
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, str | BadRequest] = OrderedDict()
        self._kept_bytes = 0

    def apply(self, sampling: Sampling) -> Sampling:
        """The sampling with its constraint, if any, as checked GBNF in `grammar` and json_schema None.

        Raises BadRequest when the constraint is wrong or not allowed, Unavailable when it can't be tried now. A
        constraint that is new takes up to some seconds.
        """
        if sampling.json_schema is not None:
            return replace(sampling, grammar=self._checked(SCHEMA, sampling.json_schema), json_schema=None)
        if sampling.grammar is not None:
            if not self._allow_grammar:
                raise BadRequest("grammar is not allowed on this model (engine.allow_grammar); allowed is json_schema")
            return replace(sampling, grammar=self._checked(GRAMMAR, sampling.grammar))
        return sampling

    def _checked(self, kind: str, text: str) -> str:
        key = hashlib.sha256(f"{kind}:{text}".encode()).digest()
        with self._lock:
            known = self._kept.get(key)
            if known is not None:
                self._kept.move_to_end(key)
        if known is None:
            try:
                known = self._trial.run(kind, text)
            except BadRequest as error:  # what is wrong stays wrong, and trying it again costs as much again
                known = error
            self._keep(key, known)
        if isinstance(known, BadRequest):
            raise BadRequest(str(known))
        return known

    def _keep(self, key: bytes, known: str | BadRequest) -> None:
        with self._lock:
            self._drop(key)
            self._kept[key] = known
            self._kept_bytes += len(str(known))
            while len(self._kept) > MAX_KEPT or self._kept_bytes > MAX_KEPT_BYTES:
                self._drop(next(iter(self._kept)))

    def _drop(self, key: bytes) -> None:
        dropped = self._kept.pop(key, None)
        self._kept_bytes -= len(str(dropped)) if dropped is not None else 0
