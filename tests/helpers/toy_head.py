"""A draft head like EAGLE's (arXiv 2401.15077), written once for torch and for the kernels: one decoder
layer over the embedding of a token beside the hidden state before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from forerun.contracts import AttentionShape, Modules
from forerun.core import Batch


class ToyHead:
    """From embeddings and hidden states [B, n, hidden] to hidden states of the next tokens."""

    def __init__(
        self, modules: Modules, shape: AttentionShape, weights: Mapping[str, Tensor]
    ) -> None:
        self.fuse = modules.linear(weights["fuse"], weights["fuse_bias"])
        self.input_norm = modules.norm(weights["input_norm"])
        self.attention = modules.attention(shape, weights)
        self.mlp_norm = modules.norm(weights["mlp_norm"])
        self.gate_up = modules.linear(weights["gate_up"])
        self.gate = modules.activation("silu", gated=True)
        self.down = modules.linear(weights["down"])

    def new_cache(self, rows: int, capacity: int) -> Any:
        return self.attention.new_cache(rows, capacity)

    def __call__(self, embeddings: Tensor, hidden: Tensor, batch: Batch, cache: Any) -> Tensor:
        x = self.fuse(torch.cat((embeddings, hidden), dim=-1))
        x = x + self.attention(self.input_norm(x), batch, cache)
        return x + self.down(self.gate(self.gate_up(self.mlp_norm(x))))


SHAPES = {
    "plain": AttentionShape(3, 3, 10),
    "rotary": AttentionShape(4, 2, 12, inverse_frequencies=tuple(10.0**-i for i in range(6))),
    "window": AttentionShape(
        6, 2, 8, window=5, inverse_frequencies=(1.0, 0.3, 0.1, 0.03), rotary_scale=1.1
    ),
    "query-key norms": AttentionShape(2, 1, 34, norm_eps=1e-5, inverse_frequencies=(0.5,) * 17),
}
"""Groups of 1, 2 and 3 query heads to a key head, in sizes that fit no block, line or group."""


def head_weights(name: str, hidden: int, inner: int = 53) -> dict[str, Tensor]:
    """Random weights of a head whose attention has one of the shapes."""
    generator = torch.Generator().manual_seed(len(name) + hidden)
    shape = SHAPES[name]
    mixed, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    matrices = {
        "fuse": (hidden, 2 * hidden),
        "qkv": (mixed + 2 * keys, hidden),
        "output": (hidden, mixed),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
    }
    vectors = {"fuse_bias": hidden, "input_norm": hidden, "mlp_norm": hidden}
    if name == "window":
        vectors |= {"qkv_bias": mixed + 2 * keys, "output_bias": hidden}
    if name == "query-key norms":
        vectors |= {"q_norm": shape.head_dim, "k_norm": shape.head_dim}
    weights = {}
    for key, size in matrices.items():
        weights[key] = 1.5 * torch.randn(size, generator=generator) / size[1] ** 0.5
    for key, length in vectors.items():
        offset = float("norm" in key)
        weights[key] = 0.3 * torch.randn(length, generator=generator) + offset
    return weights
