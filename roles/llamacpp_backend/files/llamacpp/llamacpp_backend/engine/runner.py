"""What the engine needs of llama.cpp. `llama.runner` implements it; tests use a fake.

All calls come from one thread. A *slot* is a sequence id of the context (0 to n_slots - 1); what a slot holds is a
run of tokens at positions 0, 1, 2, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..errors import EngineFailure
from ..parameters import Sampling


class NoRoom(Exception):
    """The KV cache has no room for this step; nothing has changed for any slot (llama_decode answered 1)."""


class StepFailed(EngineFailure):
    """A step failed half-way: what its slots hold is undefined until they are cleared or restored."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens to feed to one slot: they follow the `position` tokens that it holds."""

    slot: int
    tokens: Sequence[int]
    position: int
    wants_logits: bool  # of the last token: the slot can be sampled after the step


@dataclass(frozen=True, slots=True)
class Choice:
    """A sampled token. `logprob` and `top` (best first: token, logprob) only where the sampling asks for logprobs."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Sampler(Protocol):
    """Chooses the tokens of one answer; owned by the engine thread. `seed`: the one in use, None when greedy."""

    @property
    def seed(self) -> int | None:
        """The random seed in use."""

    def close(self) -> None:
        """Release it. May be called again."""


class Runner(Protocol):
    """One context with n_slots sequences."""

    @property
    def n_slots(self) -> int:
        """Sequences that can be under way at once."""

    @property
    def n_ctx(self) -> int:
        """Tokens that one slot may hold, prompt and answer together."""

    @property
    def n_batch(self) -> int:
        """Most tokens in one step, over all slots."""

    @property
    def n_cells(self) -> int:
        """Tokens that all slots may hold together: n_slots * n_ctx, less when they share one pool."""

    @property
    def can_rewind(self) -> bool:
        """Whether a slot can be cut back to any length (dense); a hybrid only goes back to a checkpoint."""

    def warm_up(self) -> None:
        """One step with all slots, before any other call: it pays for page faults and for growing buffers."""

    def decode(self, chunks: Sequence[Chunk]) -> None:
        """One step: at most one chunk per slot, slots ascending. Raises NoRoom or StepFailed."""

    def sampler(self, sampling: Sampling, prompt: Sequence[int]) -> Sampler:
        """A fresh sampler; penalties count the prompt's tokens. Raises BadRequest for what can't be built."""

    def sample(self, slot: int, sampler: Sampler, forbid_end: bool) -> Choice:
        """Choose a token from the slot's logits of the last step and tell the sampler.

        Others may be chosen from the same logits, with other samplers, before the next step.
        `forbid_end`: tokens that end a generation are not allowed (min_tokens, ignore_eos).
        """

    def clear(self, slot: int) -> None:
        """Empty a slot."""

    def rewind(self, slot: int, length: int) -> None:
        """Cut a slot back to its first `length` tokens; only where `can_rewind`."""

    def copy(self, source: int, target: int) -> None:
        """Make `target` hold what `source` holds; `source` may go on at once."""

    def state_bytes(self, slot: int) -> int:
        """Size of what `save` would return."""

    def save(self, slot: int) -> bytes:
        """All that the slot holds, to be restored into any slot of this context."""

    def restore(self, slot: int, state: bytes, length: int) -> bool:
        """Make the slot hold a saved state of `length` tokens; False, and an empty slot, when llama.cpp refuses it."""

    def save_checkpoint(self, slot: int) -> bytes:
        """What a hybrid needs to come back to the slot's present length later; b"" where can_rewind."""

    def rollback(self, slot: int, checkpoint: bytes, length: int) -> bool:
        """Bring a hybrid's slot back to `length` tokens by its checkpoint; False, and an empty slot, if refused."""

    def token_bytes(self, token: int) -> bytes:
        """The token's share of the text, maybe a part of a character; empty for control tokens."""

    def is_end(self, token: int) -> bool:
        """Whether the model says with this token that it is done."""
