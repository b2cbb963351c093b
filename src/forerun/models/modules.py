"""Parts of a model that heads and adapters are composed of, built in one way for every target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from forerun.contracts import Attention, AttentionShape, CausalLM, Module, Modules, builds_modules
from forerun.core import Batch
from forerun.kv_cache import StaticCache
from forerun.models.architecture import ACTIVATIONS
from forerun.models.attention import Parts, Step, apply_gate, norm, visibility
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
        weight, bias = self._take(weight), None if bias is None else self._take(bias)
        return lambda hidden: norm(hidden, weight, bias, eps)

    def activation(self, name: str, gated: bool = False) -> Module:
        """The function between the two products of an MLP, from [..., n] to the same; gated, from
        [..., 2n]: of the first half, times the second."""
        function = ACTIVATIONS[name]
        return partial(apply_gate, function) if gated else function

    def attention(self, shape: AttentionShape, weights: Mapping[str, Tensor]) -> Attention:
        """Self-attention with caches of its own.

        Args:
            weights: by name, as in `AttentionShape`.
        """
        taken = {name: self._take(weight) for name, weight in weights.items()}
        parts = {
            name: (weight, taken.get(f"{name}_bias"))
            for name, weight in taken.items()
            if not name.endswith("_bias")
        }
        return TorchAttention(shape, parts)

    def _take(self, weight: Tensor) -> Tensor:
        return weight.to(self.device, self.dtype)


class TorchAttention:
    """Self-attention on torch; implements `forerun.contracts.Attention`."""

    def __init__(self, shape: AttentionShape, parts: Parts) -> None:
        self._shape, self._parts = shape, parts
        qkv = parts["qkv"][0]
        self._device, self._dtype = qkv.device, qkv.dtype
        self._rotary = None
        if shape.inverse_frequencies:
            frequencies = torch.tensor(shape.inverse_frequencies)
            self._rotary = RotaryTable(frequencies, shape.rotary_scale, self._dtype, self._device)

    def new_cache(self, rows: int, capacity: int) -> StaticCache:
        shape = self._shape
        sizes = (rows, shape.num_kv_heads, capacity, shape.head_dim)
        return StaticCache(1, sizes, self._dtype, self._device)

    def __call__(self, hidden: Tensor, batch: Batch, cache: StaticCache) -> Tensor:
        positions = torch.from_numpy(batch.padded(batch.positions, -1)).to(self._device)
        appending = cache.append(batch, positions, range(1))
        window = self._shape.window
        visible = {window: visibility(appending, window, self._dtype)}
        rotation = None if self._rotary is None else self._rotary.at(positions, batch.furthest)
        step = Step(appending, visible, rotation)
        return step.attention(0, window, self._parts, self._shape, hidden)
