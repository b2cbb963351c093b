"""GPT-2 (Radford et al., 2019): learned positions, layer norms, biases everywhere."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional

from forerun.models.architecture import ACTIVATIONS, Architecture
from forerun.models.transformer import Step, Transformer


class GPT2(Transformer):
    """GPT-2 and models of its shape."""

    def __init__(self, shape: Architecture, weights: Mapping[str, Tensor], name: str) -> None:
        super().__init__(shape, weights, name)
        self.activation = ACTIVATIONS[shape.activation]
        # One lookup of a layer's tensors by short name, not six formatted keys a layer and pass.
        self.layers = [self._pick(f"layers.{index}.") for index in range(shape.num_layers)]

    def _pick(self, prefix: str) -> dict[str, Tensor]:
        found = self.weights.items()
        return {key.removeprefix(prefix): t for key, t in found if key.startswith(prefix)}

    def enter(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        learned = functional.embedding(positions.clamp(min=0), self.weights["positions.weight"])
        return self.embed(token_ids) + learned

    def layer(self, index: int, hidden: Tensor, step: Step) -> Tensor:
        layer, shape = self.layers[index], self.shape
        fused = _linear(layer, "qkv", self._norm(layer, "input_norm", hidden))
        heads = fused.view(*hidden.shape[:2], 3 * shape.num_heads, shape.head_dim).transpose(1, 2)
        query, key, value = heads.chunk(3, dim=1)
        hidden = hidden + _linear(layer, "output", self.attention(index, step, query, key, value))
        inner = self.activation(_linear(layer, "up", self._norm(layer, "mlp_norm", hidden)))
        return hidden + _linear(layer, "down", inner)

    def final_norm(self, hidden: Tensor) -> Tensor:
        return self._norm(self.weights, "norm", hidden)

    def _norm(self, tensors: Mapping[str, Tensor], name: str, hidden: Tensor) -> Tensor:
        weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
        return functional.layer_norm(hidden, weight.shape, weight, bias, self.shape.norm_eps)


def _linear(tensors: Mapping[str, Tensor], name: str, hidden: Tensor) -> Tensor:
    return functional.linear(hidden, tensors[f"{name}.weight"], tensors[f"{name}.bias"])
