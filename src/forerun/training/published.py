"""A head as it is trained: a module whose parameters have the names that it is published under."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from forerun.models.architecture import ACTIVATIONS, Architecture
from forerun.models.rope import frequencies, rotate

DEVIATION = 0.02
"""Of the matrices of a drafter that begins at random."""


class PublishedModule(nn.Module):
    """Layers of Llama's kind over parameters by published name.

    Args:
        shape: theirs.
        shapes: of the parameters, by name; norms begin as ones, biases as zeros, matrices at random.
        frozen: parameters that are not trained, by name.
    """

    def __init__(
        self,
        shape: Architecture,
        shapes: Mapping[str, tuple[int, ...]],
        frozen: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.shape = shape
        for name, size in shapes.items():
            weight = torch.ones(size) if len(size) == 1 else torch.randn(size) * DEVIATION
            hang(self, name, torch.zeros(size) if name.endswith(".bias") else weight)
        for name, tensor in (frozen or {}).items():
            hang(self, name, tensor.detach().clone().float()).requires_grad_(False)
        self._activation = ACTIVATIONS[shape.activation]
        self._inverse, self._rotary_scale = frequencies(shape)

    def weight(self, name: str) -> Tensor:
        """The weight of a part."""
        return self.get_parameter(f"{name}.weight")

    def linear(self, hidden: Tensor, name: str) -> Tensor:
        """A product, with its bias where it has one."""
        own = dict(self.get_submodule(name).named_parameters(recurse=False))
        return functional.linear(hidden, own["weight"], own.get("bias"))

    def normed(self, hidden: Tensor, name: str) -> Tensor:
        """A norm by the root mean square."""
        weight = self.weight(name).to(hidden.dtype)
        return functional.rms_norm(hidden, weight.shape, weight, self.shape.norm_eps)

    def heads(self, hidden: Tensor, names: str, positions: Tensor, layer: int = 0) -> list[Tensor]:
        """Queries, keys or values of a layer, [B, heads, n, head_dim], rotated but for values.

        Args:
            hidden: [B, n, width].
            names: letters of `qkv`.
            positions: of the tokens, [B, n] or [1, n].
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
        """A layer behind its attention: `residual` [B, n, hidden_size], and what the heads have mixed."""
        prefix = f"layers.{layer}"
        hidden = residual + self.linear(mixed, f"{prefix}.self_attn.o_proj")
        normed = self.normed(hidden, f"{prefix}.post_attention_layernorm")
        gate, up = (self.linear(normed, f"{prefix}.mlp.{name}_proj") for name in ("gate", "up"))
        return hidden + self.linear(self._activation(gate) * up, f"{prefix}.mlp.down_proj")

    def over_text(self, hidden: Tensor) -> Tensor:
        """All layers over whole texts [B, S, hidden_size], in which each token sees those before it."""
        slots = torch.arange(hidden.shape[1], device=hidden.device)
        back = slots[:, None] - slots
        for layer, window in enumerate(self.shape.windows):
            seen = (back >= 0) & (back < (window or len(slots)))
            normed = self.normed(hidden, f"layers.{layer}.input_layernorm")
            query, key, value = self.heads(normed, "qkv", slots[None], layer)
            hidden = self.rest(hidden, attend(query, key, value, seen[None, None]), layer)
        return hidden

    def published(self, token_ids: Tensor | None) -> dict[str, Tensor]:
        """The tensors of the head by published name.

        Args:
            token_ids: the target's token of each draft token, [Vd]; None where all are drafted.
        """
        tensors = {name: tensor.detach() for name, tensor in self.named_parameters()}
        if token_ids is not None:
            tensors["d2t"] = token_ids - torch.arange(len(token_ids))
        return tensors


def attend(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """What heads mix of the values that they see, [B, n, heads * head_dim].

    Args:
        query: [B, heads, n, head_dim].
        keys, values: [B, kv_heads, m, head_dim].
        seen: which keys each query sees, bool [B, 1, n, m].
    """
    mixed = functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=seen, enable_gqa=True
    )
    return mixed.transpose(1, 2).flatten(2)


def hang(owner: nn.Module, name: str, tensor: Tensor) -> nn.Parameter:
    """Make a tensor a parameter with a name of dots."""
    *path, last = name.split(".")
    for part in path:
        if part not in owner._modules:
            owner.add_module(part, nn.Module())
        owner = owner.get_submodule(part)
    parameter = nn.Parameter(tensor)
    owner.register_parameter(last, parameter)
    return parameter
