"""A client's constraint -> checked GBNF text. Plain Python; runs in the trial's process, as it may take long."""

from __future__ import annotations

from ..errors import BadRequest
from .checks import check, reachable
from .expression import render
from .gbnf import parse_gbnf
from .hoisting import hoisted
from .schema import schema_rules

MAX_PARTS = 500
MAX_GBNF_BYTES = 262_144  # once repetitions of a schema's parts are written down as rules

SCHEMA = "json_schema"
GRAMMAR = "grammar"


def gbnf_of(kind: str, text: str) -> tuple[str, list[str]]:
    """GBNF with the root rule `root`, and the rules from which it is to be tried.

    `kind`: SCHEMA or GRAMMAR. Raises BadRequest that says what is wrong where.
    """
    try:
        if kind == SCHEMA:
            rules = schema_rules(text)
        else:
            rules = parse_gbnf(text)
            check(rules)
        rules = hoisted(reachable(rules))
    except RecursionError as error:
        raise BadRequest(f"{kind} is nested too deep") from error
    if kind == GRAMMAR and len(rules) > MAX_PARTS:
        raise BadRequest(f"grammar has {len(rules)} rules and inner parts; allowed are at most {MAX_PARTS}")
    # Written anew: llama.cpp only ever reads what this package writes.
    gbnf = render(rules)
    if len(gbnf.encode("utf-8")) > MAX_GBNF_BYTES:
        raise BadRequest(f"{kind} makes a grammar of {len(gbnf)} bytes; allowed are at most {MAX_GBNF_BYTES}")
    # Of a schema's grammar check_width has shown that it is never slow; of a client's nothing is known.
    return gbnf, list(rules) if kind == GRAMMAR else ["root"]
