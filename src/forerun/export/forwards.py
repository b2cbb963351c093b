"""Building blocks for the forwards of published heads: text, decoder layer, and drafts.

The code is plain torch in float32, over the tensors as published. It shares nothing with the modules
that train and draft, because they are compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from forerun.export.sizes import Sizes
from forerun.models.architecture import ACTIVATIONS
from forerun.models.rope import rotate

Weights = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Text:
    """A text with the target's hidden states and logits, in float32.

    Attributes:
        token_ids: token ids, [n].
        hidden: hidden states by layer, [n, H]; layer i is the output of the target's first i layers.
        logits: the target's logits, [n, V].
        embed: the target's embedding, which maps token ids [m] to [m, H].
        lm_head: the target's output head, applied to normed states [..., H].
        start: index of the first token after the prompt, from which the tokens are the target's own.
    """

    token_ids: Tensor
    hidden: Mapping[int, Tensor]
    logits: Tensor
    embed: Callable[[Tensor], Tensor]
    lm_head: Callable[[Tensor], Tensor]
    start: int = 0

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, eq=False)
class Drafted:
    """Drafts of a head for a text.

    Attributes:
        logits: logits over the draft's vocabulary, [m, Vd].
        target_ids: target token of each column, [Vd]; -1 for a column without a token.
        follows: index of the token of the text that each draft follows, [m].
    """

    logits: Tensor
    target_ids: Tensor
    follows: Tensor

    @property
    def tokens(self) -> Tensor:
        """The most likely draft of each row, as a target token, [m]."""
        return self.target_ids[self.logits.argmax(-1)]


def norm(states: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm."""
    return states * torch.rsqrt(states.square().mean(-1, keepdim=True) + eps) * weight


def target_ids_of(weights: Weights, draft_ids: str, columns: int) -> Tensor:
    """Target tokens of a draft vocabulary of `columns` tokens, by the reading's `draft_ids`."""
    plain = torch.arange(columns)
    if draft_ids == "t2d":
        return weights["t2d"].bool().nonzero().flatten()
    if draft_ids == "none":
        return plain
    d2t = weights["d2t"].long()
    mapped = d2t if draft_ids == "absolute" else d2t + torch.arange(len(d2t))
    return torch.cat((mapped[:columns], torch.full((max(0, columns - len(mapped)),), -1)))


class Layer:
    """One decoder layer: attention and an MLP.

    Args:
        weights: weights of the head, in float32.
        index: index of the layer.
        sizes: sizes of the head.
        rotation: function from positions [m] to cosines and sines, each [1, 1, m, head_dim].
    """

    def __init__(
        self,
        weights: Weights,
        index: int,
        sizes: Sizes,
        rotation: Callable[[Tensor], tuple[Tensor, Tensor]],
        *,
        activation: str = "silu",
        bias: bool = False,
    ) -> None:
        self.index = index
        self._weights, self._prefix, self._sizes = weights, f"layers.{index}.", sizes
        self._rotation, self._activation, self._bias = rotation, activation, bias

    def weight(self, name: str) -> Tensor:
        return self._weights[f"{self._prefix}{name}.weight"]

    def has(self, name: str) -> bool:
        return f"{self._prefix}{name}.weight" in self._weights

    def normed(self, name: str, states: Tensor) -> Tensor:
        """Apply one of the layer's norms; a norm that is not stored has weights of one."""
        weight = self.weight(name) if self.has(name) else states.new_ones(states.shape[-1])
        return norm(states, weight, self._sizes.norm_eps)

    def _project(self, name: str, states: Tensor, heads: int) -> Tensor:
        """Queries, keys or values, [heads, m, head_dim]."""
        bias = self._weights[f"{self._prefix}self_attn.{name}_proj.bias"] if self._bias else None
        flat = functional.linear(states, self.weight(f"self_attn.{name}_proj"), bias)
        split = flat.reshape(len(states), heads, self._sizes.head_dim).movedim(1, 0)
        return (
            self.normed(f"self_attn.{name}_norm", split)
            if self.has(f"self_attn.{name}_norm")
            else split
        )

    def queries(self, states: Tensor, positions: Tensor) -> Tensor:
        """Queries of states [m, columns], [num_heads, m, head_dim]."""
        return self._turn(self._project("q", states, self._sizes.num_heads), positions)

    def keys_values(self, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of states [m, columns], repeated for query heads that share them."""
        shared = self._sizes.num_heads // self._sizes.num_kv_heads
        keys = self._turn(self._project("k", states, self._sizes.num_kv_heads), positions)
        values = self._project("v", states, self._sizes.num_kv_heads)
        return keys.repeat_interleave(shared, 0), values.repeat_interleave(shared, 0)

    def _turn(self, vectors: Tensor, positions: Tensor) -> Tensor:
        return rotate(vectors[None], self._rotation(positions))[0]

    def finish(self, attended: Tensor, residual: Tensor) -> Tensor:
        """Output of the layer from its attention heads' output, [num_heads, m, head_dim]."""
        joined = attended.movedim(0, -2).flatten(-2)
        states = residual + functional.linear(joined, self.weight("self_attn.o_proj"))
        normed = self.normed("post_attention_layernorm", states)
        gate = ACTIVATIONS[self._activation](
            functional.linear(normed, self.weight("mlp.gate_proj"))
        )
        inner = gate * functional.linear(normed, self.weight("mlp.up_proj"))
        return states + functional.linear(inner, self.weight("mlp.down_proj"))


def rotation_of(frequencies: Tensor, scale: float) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """A function from positions to the cosines and sines of a rotary embedding."""

    def turn(positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = torch.outer(positions.float(), frequencies)
        angles = torch.cat((angles, angles), -1)[None, None]
        return angles.cos() * scale, angles.sin() * scale

    return turn


def softmax_over(queries: Tensor, parts: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Attention of queries over several parts, [heads, m, head_dim].

    Args:
        queries: queries, [heads, m, head_dim].
        parts: triples of keys and values, [heads, k, head_dim], and a mask, [m, k], that is True for
            visible places.
    """
    keys = torch.cat([part[0] for part in parts], 1)
    values = torch.cat([part[1] for part in parts], 1)
    seen = torch.cat([part[2] for part in parts], 1)
    scores = queries @ keys.mT / queries.shape[-1] ** 0.5
    weights: Tensor = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return weights @ values


def head_logits(weights: Weights, kind: str, states: Tensor, text: Text) -> Tensor:
    if kind == "own":
        return functional.linear(states, weights["lm_head.weight"])
    if kind == "embedding" and "embed_tokens.weight" in weights:
        return functional.linear(states, weights["embed_tokens.weight"])
    if kind == "embedding":
        return states @ text.embed(torch.arange(text.logits.shape[-1])).mT
    return text.lm_head(states)
