"""Model parts that heads and adapters are composed of, built in the same way for every target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from forerun.contracts import (
    AttentionShape,
    CausalLM,
    HeadParts,
    LayerShape,
    Module,
    Modules,
    builds_modules,
)
from forerun.core import Batch
from forerun.kv_cache import StaticCache
from forerun.models.architecture import ACTIVATIONS
from forerun.models.attention import AttentionStep, CacheParts, apply_gate, norm, visibility
from forerun.models.rope import RotaryTable


def modules_for(target: CausalLM) -> Modules:
    """Builder of modules that run on the target's backend: the target's own, or torch's.

    torch's modules have the dtype of the target's hidden states.
    """
    if builds_modules(target):
        return target.modules()
    return TorchModules(target.device, target.dtype)


@dataclass(frozen=True)
class TorchModules:
    """Modules on torch.

    Args:
        device, dtype: device and type of weights and hidden states.
    """

    device: torch.device
    dtype: torch.dtype

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        norm: Tensor | None = None,
        eps: float = 1e-6,
    ) -> TorchLinear:
        """A linear map by `weight` [rows, cols] and `bias` [rows] of [..., cols], normed by `norm` [cols]."""
        before = None if norm is None else self.norm(norm, eps=eps)
        return TorchLinear(self._take(weight), None if bias is None else self._take(bias), before)

    def norm(self, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-6) -> Module:
        """A root mean square norm; with a bias, a layer norm."""
        weight, bias = self._take(weight), None if bias is None else self._take(bias)
        return lambda hidden: norm(hidden, weight, bias, eps)

    def activation(self, name: str, gated: bool = False) -> Module:
        """The activation of an MLP, from [..., n] to the same shape.

        Gated, it maps [..., 2n] to [..., n]: the function of the first half, times the second half.
        """
        function = ACTIVATIONS[name]
        return partial(apply_gate, function) if gated else function

    def attention(self, shape: AttentionShape, weights: Mapping[str, Tensor]) -> TorchAttention:
        """A self-attention with its own caches.

        Args:
            shape: shape of the attention.
            weights: weights by name, as in `AttentionShape`.
        """
        own = ("qkv", "output", "q_norm", "k_norm")
        names = [name for part in own for name in (part, f"{part}_bias") if name in weights]
        taken = {name: self._take(weights[name]) for name in names}
        parts = {
            name: (weight, taken.get(f"{name}_bias"))
            for name, weight in taken.items()
            if not name.endswith("_bias")
        }
        return TorchAttention(shape, parts)

    def layer(self, shape: LayerShape, weights: Mapping[str, Tensor]) -> ComposedLayer:
        """A decoder layer, composed of the other parts.

        Args:
            shape: shape of the layer.
            weights: weights by name, as in `LayerShape`.
        """
        return ComposedLayer(self, shape, weights)

    def head_chains(self, parts: HeadParts) -> None:
        """None: on torch heads are run step by step."""

    def _take(self, weight: Tensor) -> Tensor:
        return weight.to(self.device, self.dtype)


@dataclass(frozen=True)
class TorchLinear:
    """A linear map on torch; implements `forerun.contracts.Module`."""

    weight: Tensor
    bias: Tensor | None
    norm: Module | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        hidden = hidden if self.norm is None else self.norm(hidden)
        return functional.linear(hidden, self.weight, self.bias)


class ComposedLayer:
    """A decoder layer made of parts that are called one by one; implements `forerun.contracts.Layer`.

    Args:
        modules: builds its parts.
        shape: shape of the layer.
        weights: weights by name, as in `LayerShape`.
    """

    def __init__(self, modules: Modules, shape: LayerShape, weights: Mapping[str, Tensor]) -> None:
        def norm(name: str) -> Module | None:
            weight = weights.get(name)
            return None if weight is None else modules.norm(weight, eps=shape.norm_eps)

        self._input_norms = [norm(f"input_norm.{index}") for index in range(shape.inputs)]
        self._normed_residual = shape.normed_residual
        self._attention = modules.attention(shape, weights)
        self._mlp_norm = modules.norm(weights["mlp_norm"], eps=shape.norm_eps)
        self._gate_up = modules.linear(weights["gate_up"], weights.get("gate_up_bias"))
        self._gate = modules.activation(shape.activation, gated=True)
        self._down = modules.linear(weights["down"], weights.get("down_bias"))
        self.new_cache = self._attention.new_cache

    def __call__(self, inputs: Sequence[Tensor], batch: Batch, cache: Any) -> Tensor:
        pairs = zip(self._input_norms, inputs, strict=True)
        normed = [states if norm is None else norm(states) for norm, states in pairs]
        residual = normed[-1] if self._normed_residual else inputs[-1]
        hidden = residual + self._attention(torch.cat(normed, dim=-1), batch, cache)
        return hidden + self._down(self._gate(self._gate_up(self._mlp_norm(hidden))))


class TorchAttention:
    """Self-attention on torch; implements `forerun.contracts.Attention`."""

    def __init__(self, shape: AttentionShape, parts: CacheParts) -> None:
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
        step = AttentionStep(appending, visible)
        return step.attention(0, self._shape, self._parts, hidden, rotation)
