"""The demo model's network: llama.cpp's `qwen3` architecture with tied embeddings, in PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """Sizes of the network; the names follow the GGUF metadata keys."""

    vocabulary: int
    context_length: int = 4096
    block_count: int = 4
    embedding_length: int = 256
    feed_forward_length: int = 256
    head_count: int = 4
    head_count_kv: int = 2
    head_length: int = 64
    rope_freq_base: float = 10000.0
    layer_norm_rms_epsilon: float = 1e-6


class RmsNorm(nn.Module):  # type: ignore[misc]  # torch has no types where it isn't installed
    """Root mean square normalisation over the last axis."""

    def __init__(self, length: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(length))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon) * self.weight


class Attention(nn.Module):  # type: ignore[misc]
    """Causal grouped-query attention with normalised queries and keys and NEOX-style rotary positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, self.head_length = shape.embedding_length, shape.head_length
        self.heads, self.heads_kv = shape.head_count, shape.head_count_kv
        self.q = nn.Linear(width, self.heads * self.head_length, bias=False)
        self.k = nn.Linear(width, self.heads_kv * self.head_length, bias=False)
        self.v = nn.Linear(width, self.heads_kv * self.head_length, bias=False)
        self.output = nn.Linear(self.heads * self.head_length, width, bias=False)
        self.q_norm = RmsNorm(self.head_length, shape.layer_norm_rms_epsilon)
        self.k_norm = RmsNorm(self.head_length, shape.layer_norm_rms_epsilon)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Map x (batch, length, width); cos and sin are (length, head_length), mask is (length, length)."""
        batch, length, _ = x.shape
        q = self.q(x).view(batch, length, self.heads, self.head_length).transpose(1, 2)
        k = self.k(x).view(batch, length, self.heads_kv, self.head_length).transpose(1, 2)
        v = self.v(x).view(batch, length, self.heads_kv, self.head_length).transpose(1, 2)
        q, k = _rotate(self.q_norm(q), cos, sin), _rotate(self.k_norm(k), cos, sin)
        repeats = self.heads // self.heads_kv
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        weights = (q @ k.transpose(-1, -2) * self.head_length**-0.5 + mask).softmax(-1)
        return self.output((weights @ v).transpose(1, 2).reshape(batch, length, -1))


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Block(nn.Module):  # type: ignore[misc]
    """One layer: attention and a gated feed-forward network, each with a residual connection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, inner = shape.embedding_length, shape.feed_forward_length
        self.attn_norm = RmsNorm(width, shape.layer_norm_rms_epsilon)
        self.attn = Attention(shape)
        self.ffn_norm = RmsNorm(width, shape.layer_norm_rms_epsilon)
        self.ffn_gate = nn.Linear(width, inner, bias=False)
        self.ffn_up = nn.Linear(width, inner, bias=False)
        self.ffn_down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.attn_norm(x), cos, sin, mask)
        y = self.ffn_norm(x)
        return x + self.ffn_down(functional.silu(self.ffn_gate(y)) * self.ffn_up(y))


class Network(nn.Module):  # type: ignore[misc]
    """Token ids of shape (batch, length) to logits of shape (batch, length, vocabulary)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.embedding_length)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.block_count))
        self.output_norm = RmsNorm(shape.embedding_length, shape.layer_norm_rms_epsilon)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.04)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        length = ids.shape[1]
        half = torch.arange(0, self.shape.head_length, 2).float() / self.shape.head_length
        angles = torch.outer(torch.arange(length).float(), self.shape.rope_freq_base**-half)
        angles = torch.cat((angles, angles), -1)
        mask = torch.full((length, length), float("-inf")).triu(1)
        x = self.token_embd(ids)
        for block in self.blk:
            x = block(x, angles.cos(), angles.sin(), mask)
        return self.output_norm(x) @ self.token_embd.weight.t()

    def gguf_tensors(self) -> dict[str, torch.Tensor]:
        """Return the weights under the tensor names of the GGUF format."""
        names = {"attn.output": "attn_output", "attn.": "attn_"}
        tensors = {}
        for name, tensor in self.state_dict().items():
            for ours, theirs in names.items():
                name = name.replace(ours, theirs)
            tensors[name] = tensor
        return tensors
