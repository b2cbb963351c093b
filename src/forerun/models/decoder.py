"""One decoder for Llama, Mistral, Qwen2 and Qwen3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from forerun.contracts import AttentionShape
from forerun.models.architecture import ACTIVATIONS, Architecture
from forerun.models.rope import RotaryTable, frequencies, rotate
from forerun.models.transformer import Step, Transformer


@dataclass(frozen=True)
class DecoderLayer:
    """The tensors of one layer; what a family does not have is None."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None

    @classmethod
    def of(cls, weights: Mapping[str, Tensor], index: int) -> DecoderLayer:
        """Pick the tensors of layer `index`."""
        at = f"layers.{index}"
        return cls(
            input_norm=weights[f"{at}.input_norm.weight"],
            qkv=weights[f"{at}.qkv.weight"],
            qkv_bias=weights.get(f"{at}.qkv.bias"),
            q_norm=weights.get(f"{at}.q_norm.weight"),
            k_norm=weights.get(f"{at}.k_norm.weight"),
            output=weights[f"{at}.output.weight"],
            output_bias=weights.get(f"{at}.output.bias"),
            mlp_norm=weights[f"{at}.mlp_norm.weight"],
            gate_up=weights[f"{at}.gate_up.weight"],
            gate_up_bias=weights.get(f"{at}.gate_up.bias"),
            down=weights[f"{at}.down.weight"],
            down_bias=weights.get(f"{at}.down.bias"),
        )


class Decoder(Transformer):
    """Llama, Mistral, Qwen2 and Qwen3: rotary positions, RMS norms, a gated MLP, shared keys."""

    def __init__(self, shape: Architecture, weights: Mapping[str, Tensor], name: str) -> None:
        super().__init__(shape, weights, name)
        self.layers = [DecoderLayer.of(weights, index) for index in range(shape.num_layers)]
        self.norm = weights["norm.weight"]
        rotary = frequencies(shape.config, shape.head_dim)
        self.rotary = RotaryTable(*rotary, self.dtype, self.device)
        self.activation = ACTIVATIONS[shape.activation]

    def rotation(self, positions: Tensor, furthest: int) -> tuple[Tensor, Tensor]:
        return self.rotary.at(positions, furthest)

    def layer(self, index: int, hidden: Tensor, step: Step) -> Tensor:
        layer, eps = self.layers[index], self.shape.norm_eps
        normed = rms_norm(hidden, layer.input_norm, eps)
        hidden = hidden + self._attention(index, normed, step)
        normed = rms_norm(hidden, layer.mlp_norm, eps)
        gate, up = functional.linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        return hidden + functional.linear(self.activation(gate) * up, layer.down, layer.down_bias)

    def _attention(self, index: int, normed: Tensor, step: Step) -> Tensor:
        layer = self.layers[index]
        fused = functional.linear(normed, layer.qkv, layer.qkv_bias)
        norms = (layer.q_norm, layer.k_norm)
        query, key, value = queries_keys_values(fused, self.shape, norms, step.rotation)
        mixed = self.attention(index, step, query, key, value)
        return functional.linear(mixed, layer.output, layer.output_bias)

    def final_norm(self, hidden: Tensor) -> Tensor:
        return rms_norm(hidden, self.norm, self.shape.norm_eps)


def queries_keys_values(
    fused: Tensor,
    shape: Architecture | AttentionShape,
    norms: tuple[Tensor | None, Tensor | None],
    rotation: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Split what `qkv` gives, [B, n, rows], into heads [B, heads, n, head_dim], queries and keys
    normed and rotated.

    Args:
        norms: [head_dim] of queries and of keys, where there are any.
        rotation: cosines and sines [B, 1, n, head_dim] of a rotary embedding, if there is one.
    """
    heads = fused.view(*fused.shape[:2], -1, shape.head_dim)
    sizes = [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads]
    query, key, value = torch.split(heads, sizes, dim=2)
    query_norm, key_norm = norms
    if query_norm is not None and key_norm is not None:
        query = rms_norm(query, query_norm, shape.norm_eps)
        key = rms_norm(key, key_norm, shape.norm_eps)
    query, key = query.transpose(1, 2), key.transpose(1, 2)
    if rotation is not None:
        query, key = rotate(query, rotation), rotate(key, rotation)
    return query, key, value.transpose(1, 2)


def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide by the root mean square (arXiv 1910.07467), computed in float32 at least."""
    if hidden.dtype in (torch.float32, torch.float64):
        return functional.rms_norm(hidden, weight.shape, weight, eps)
    # Rounded before the weight, as transformers does, so that both agree in 16 bits.
    return functional.rms_norm(hidden.float(), weight.shape, eps=eps).to(hidden.dtype) * weight
