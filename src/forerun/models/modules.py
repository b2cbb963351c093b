"""Parts of a model that heads and adapters are composed of: one way to build them for every target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from forerun.contracts import (
    Attention,
    AttentionShape,
    CausalLM,
    Module,
    Modules,
    builds_modules,
)
from forerun.core import Batch
from forerun.kv_cache import StaticCache
from forerun.models.architecture import ACTIVATIONS
from forerun.models.attention import attend, visibility
from forerun.models.decoder import queries_keys_values, rms_norm
from forerun.models.rope import RotaryTable


def modules_for(target: CausalLM) -> Modules:
    """What builds modules that run where the target runs: the target's own, or torch's in the dtype
    of its hidden states."""
    if builds_modules(target):
        return target.modules()
    return TorchModules(target.device, target.dtype)


@dataclass(frozen=True)
class TorchModules:
    """Modules on torch.

    Args:
        device, dtype: of weights and hidden states.
    """

    device: torch.device
    dtype: torch.dtype

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Module:
        """`weight` [rows, cols] and `bias` [rows], applied to [..., cols]."""
        weight, bias = self._take(weight), None if bias is None else self._take(bias)
        return lambda hidden: functional.linear(hidden, weight, bias)

    def norm(self, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-6) -> Module:
        """By the root mean square; with a bias a layer norm."""
        weight = self._take(weight)
        if bias is None:
            return lambda hidden: rms_norm(hidden, weight, eps)
        shift = self._take(bias)
        return lambda hidden: functional.layer_norm(hidden, weight.shape, weight, shift, eps)

    def activation(self, name: str, gated: bool = False) -> Module:
        """The function between the two products of an MLP, from [..., n] to the same; gated, from
        [..., 2n]: of the first half, times the second."""
        function = ACTIVATIONS[name]
        if not gated:
            return function

        def gate(hidden: Tensor) -> Tensor:
            first, second = hidden.chunk(2, dim=-1)
            return function(first) * second

        return gate

    def attention(self, shape: AttentionShape, weights: Mapping[str, Tensor]) -> Attention:
        """Self-attention with caches of its own.

        Args:
            weights: by name, as in `AttentionShape`.
        """
        return TorchAttention(shape, {name: self._take(w) for name, w in weights.items()})

    def _take(self, weight: Tensor) -> Tensor:
        return weight.to(self.device, self.dtype)


class TorchAttention:
    """Self-attention on torch; implements `forerun.contracts.Attention`."""

    def __init__(self, shape: AttentionShape, weights: Mapping[str, Tensor]) -> None:
        self.shape, self.weights = shape, weights
        qkv = weights["qkv"]
        self._device, self._dtype = qkv.device, qkv.dtype
        self._rotary = None
        if shape.inverse_frequencies:
            frequencies = torch.tensor(shape.inverse_frequencies)
            self._rotary = RotaryTable(frequencies, shape.rotary_scale, self._dtype, self._device)

    def new_cache(self, rows: int, capacity: int) -> StaticCache:
        shape = self.shape
        sizes = (shape.num_kv_heads, capacity, shape.head_dim)
        return StaticCache(1, rows, *sizes, self._dtype, self._device)

    def __call__(self, hidden: Tensor, batch: Batch, cache: StaticCache) -> Tensor:
        shape, weights = self.shape, self.weights
        positions = torch.from_numpy(batch.padded(batch.positions, -1)).to(self._device)
        appending = cache.append(batch, positions, range(1))
        rotation = None
        if self._rotary is not None:
            rotation = self._rotary.at(positions, batch.furthest)
        fused = functional.linear(hidden, weights["qkv"], weights.get("qkv_bias"))
        norms = (weights.get("q_norm"), weights.get("k_norm"))
        query, key, value = queries_keys_values(fused, shape, norms, rotation)
        appending.write(0, key, value)
        visible = visibility(appending, shape.window, self._dtype)
        keys, values = appending.read(0, visible.first)
        mixed = attend(query, keys, values, visible, shape.head_dim**-0.5)
        return functional.linear(mixed, weights["output"], weights.get("output_bias"))
