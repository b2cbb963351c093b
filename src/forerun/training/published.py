"""Base of trained heads: a module of Llama-like layers whose parameters have their published names."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from forerun.heads.layers import Shapes
from forerun.models.architecture import ACTIVATIONS, Architecture
from forerun.models.rope import frequencies, rotate

DEVIATION = 0.02
"""Standard deviation of randomly initialized matrices."""


class NamedModule(nn.Module):
    """A module whose parameters have the names of a published layout.

    Args:
        tensors: initial values by name.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            hang(self, name, tensor.detach().clone().float())

    def weight(self, name: str) -> Tensor:
        """The weight parameter of a submodule."""
        return self.get_parameter(f"{name}.weight")

    def linear(self, hidden: Tensor, name: str) -> Tensor:
        """Apply a linear submodule, with its bias if it has one."""
        own = dict(self.get_submodule(name).named_parameters(recurse=False))
        return functional.linear(hidden, own["weight"], own.get("bias"))

    def published(self, token_ids: Tensor | None) -> dict[str, Tensor]:
        """Tensors of the head by published name.

        Args:
            token_ids: the target's token of each draft token, [Vd]; None if all tokens are drafted.
        """
        tensors = {name: tensor.detach() for name, tensor in self.named_parameters()}
        if token_ids is not None:
            tensors["d2t"] = token_ids - torch.arange(len(token_ids))
        return tensors


class PublishedModule(NamedModule):
    """Llama-like layers over parameters by published name.

    Args:
        shape: architecture of the layers.
        shapes: shapes of the parameters by name. Norms are initialized as ones, biases as zeros, matrices
            at random.
        frozen: parameters that are not trained, by name.
    """

    def __init__(
        self, shape: Architecture, shapes: Shapes, frozen: Mapping[str, Tensor] | None = None
    ) -> None:
        lent = dict(frozen or {})
        super().__init__({**{name: _initial(name, size) for name, size in shapes.items()}, **lent})
        self.shape = shape
        for name in lent:
            self.get_parameter(name).requires_grad_(False)
        self._activation = ACTIVATIONS[shape.activation]
        self._inverse, self._rotary_scale = frequencies(shape)

    def normed(self, hidden: Tensor, name: str) -> Tensor:
        """Apply an RMS norm."""
        weight = self.weight(name).to(hidden.dtype)
        return functional.rms_norm(hidden, weight.shape, weight, self.shape.norm_eps)

    def heads(self, hidden: Tensor, names: str, positions: Tensor, layer: int = 0) -> list[Tensor]:
        """Queries, keys or values of a layer, [B, heads, n, head_dim]; queries and keys are rotated.

        Args:
            hidden: hidden states, [B, n, width].
            names: letters of `qkv`.
            positions: positions of the tokens, [B, n] or [1, n].
        """
        angles = positions[..., None].float() * self._inverse.to(positions.device)
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        made = []
        for name in names:
            flat = self.linear(hidden, f"layers.{layer}.self_attn.{name}_proj")
            vectors = flat.view(*flat.shape[:2], -1, self.shape.head_dim)
            if name != "v" and self.shape.query_key_norm:
                vectors = self.normed(vectors, f"layers.{layer}.self_attn.{name}_norm")
            vectors = vectors.transpose(1, 2)
            if name != "v":
                scale, dtype = self._rotary_scale, vectors.dtype
                rotation = ((angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype))
                vectors = rotate(vectors, rotation)
            made.append(vectors)
        return made

    def rest(self, residual: Tensor, mixed: Tensor, layer: int = 0) -> Tensor:
        """Output of a layer from its residual [B, n, hidden_size] and the attention heads' output."""
        prefix = f"layers.{layer}"
        hidden = residual + self.linear(mixed, f"{prefix}.self_attn.o_proj")
        normed = self.normed(hidden, f"{prefix}.post_attention_layernorm")
        gate, up = (self.linear(normed, f"{prefix}.mlp.{name}_proj") for name in ("gate", "up"))
        return hidden + self.linear(self._activation(gate) * up, f"{prefix}.mlp.down_proj")

    def over_text(self, hidden: Tensor) -> Tensor:
        """Apply all layers to whole texts [B, S, hidden_size], with causal attention."""
        slots = torch.arange(hidden.shape[1], device=hidden.device)
        back = slots[:, None] - slots
        for layer, window in enumerate(self.shape.windows):
            seen = (back >= 0) & (back < (window or len(slots)))
            normed = self.normed(hidden, f"layers.{layer}.input_layernorm")
            query, key, value = self.heads(normed, "qkv", slots[None], layer)
            hidden = self.rest(hidden, attend(query, key, value, seen[None, None]), layer)
        return hidden


def _initial(name: str, size: tuple[int, ...]) -> Tensor:
    """Initial values of a parameter."""
    if name.endswith(".bias"):
        return torch.zeros(size)
    return torch.ones(size) if len(size) == 1 else torch.randn(size) * DEVIATION


def attend(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """Attention with a mask, [B, n, heads * head_dim].

    Args:
        query: queries, [B, heads, n, head_dim].
        keys, values: keys and values, [B, kv_heads, m, head_dim].
        seen: True for keys that a query sees, bool [B, 1, n, m].
    """
    mixed = functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=seen, enable_gqa=True
    )
    return mixed.transpose(1, 2).flatten(2)


def hang(owner: nn.Module, name: str, tensor: Tensor) -> nn.Parameter:
    """Register a tensor as a parameter under a dotted name."""
    *path, last = name.split(".")
    for part in path:
        if part not in owner._modules:
            owner.add_module(part, nn.Module())
        owner = owner.get_submodule(part)
    parameter = nn.Parameter(tensor)
    owner.register_parameter(last, parameter)
    return parameter
