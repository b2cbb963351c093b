"""One decoder for Llama, Mistral, Qwen2 and Qwen3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from forerun.models.architecture import ACTIVATIONS, Architecture
from forerun.models.rope import RotaryTable, rotate
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
        self.rotary = RotaryTable(shape.config, shape.head_dim, self.dtype, self.device)
        self.activation = ACTIVATIONS[shape.activation]

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        return functional.embedding(token_ids, self.weights["embedding.weight"])

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
        layer, shape = self.layers[index], self.shape
        batch, width, _ = normed.shape
        fused = functional.linear(normed, layer.qkv, layer.qkv_bias)
        heads = fused.view(batch, width, -1, shape.head_dim)
        sizes = [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads]
        query, key, value = torch.split(heads, sizes, dim=2)
        if layer.q_norm is not None and layer.k_norm is not None:
            query = rms_norm(query, layer.q_norm, shape.norm_eps)
            key = rms_norm(key, layer.k_norm, shape.norm_eps)
        assert step.rotation is not None, "a rotary decoder always has a rotation"
        query = rotate(query.transpose(1, 2), step.rotation)
        key = rotate(key.transpose(1, 2), step.rotation)
        mixed = self.attention(index, step, query, key, value.transpose(1, 2))
        return functional.linear(mixed, layer.output, layer.output_bias)

    def final_norm(self, hidden: Tensor) -> Tensor:
        return rms_norm(hidden, self.norm, self.shape.norm_eps)


def rms_norm(hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide by the root mean square (arXiv 1910.07467), computed in float32 at least."""
    if hidden.dtype in (torch.float32, torch.float64):
        return functional.rms_norm(hidden, weight.shape, weight, eps)
    # Rounded before the weight, as transformers does, so that both agree in 16 bits.
    return functional.rms_norm(hidden.float(), weight.shape, eps=eps).to(hidden.dtype) * weight
