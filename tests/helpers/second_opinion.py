"""Forwards of published heads as straight-line torch in float32: a second opinion on what replays run.

The code is written from the layouts alone. It shares nothing with the modules that train, draft and replay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from forerun.contracts import CausalLM
from forerun.export.head import PublishedHead
from forerun.export.readings import Reading
from forerun.export.replay import Drafted, ObservedText

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
}

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Sizes:
    """Sizes of a head as its config names them."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_layers: int
    draft_vocab_size: int
    norm_eps: float

    @classmethod
    def of(cls, head: PublishedHead) -> Sizes:
        layers = head.layers
        return cls(
            layers["num_attention_heads"],
            layers["num_key_value_heads"],
            layers["head_dim"],
            layers["num_hidden_layers"],
            head.config.get("draft_vocab_size", layers["vocab_size"]),
            layers["rms_norm_eps"],
        )


@dataclass(frozen=True, eq=False)
class Text:
    """An observed text in float32, with what its target lends."""

    token_ids: Tensor
    hidden: Mapping[int, Tensor]
    model: CausalLM

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    def embed(self, ids: Tensor) -> Tensor:
        return self.model.embed(ids[None])[0].float()

    def lm_head(self, states: Tensor) -> Tensor:
        return self.model.lm_head(states[None].to(self.model.dtype))[0].float()

    def __len__(self) -> int:
        return len(self.token_ids)


def second_opinion(head: PublishedHead, reading: Reading, observed: ObservedText) -> Drafted:
    """Drafts of a head with a plain rotary embedding for a text under a reading."""
    hidden = {layer: states.float() for layer, states in observed.hidden.items()}
    text = Text(torch.tensor(observed.token_ids), hidden, observed.model)
    weights = {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in head.weights.items()
    }
    sizes = Sizes.of(head)
    # Scaled linearly, positions are divided.
    factor = (head.layers.get("rope_parameters") or {}).get("factor", 1.0)

    def rotation(positions: Tensor) -> tuple[Tensor, Tensor]:
        exponents = torch.arange(0, sizes.head_dim, 2, dtype=torch.float32) / sizes.head_dim
        angles = torch.outer(positions.float() / factor, 1.0 / reading.theta**exponents)
        angles = torch.cat((angles, angles), -1)[None, None]
        return angles.cos(), angles.sin()

    return eagle3_forward(weights, sizes, reading, text, rotation)


def rotate(vectors: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    half = vectors.shape[-1] // 2
    low, high = vectors[..., :half], vectors[..., half:]
    cos, sin = (part[..., :half] for part in rotation)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


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
        return states @ text.embed(torch.arange(text.vocab_size)).mT
    return text.lm_head(states)


def fused(weights: Weights, reading: Reading, text: Text, eps: float) -> Tensor:
    """Fused features that an EAGLE-3 head starts from, [n, H]."""
    parts = [text.hidden[layer] for layer in reading.hidden_layers]
    if reading.fc_norm:
        names = [f"fc_norm.{index}.weight" for index in range(len(parts))]
        parts = [
            norm(part, weights.get(name, torch.ones(part.shape[-1])), eps)
            for part, name in zip(parts, names, strict=True)
        ]
    features = torch.cat(parts, -1)
    if reading.norm_before_fc:
        features = norm(features, weights["input_norm.weight"], eps)
    return functional.linear(
        features, weights["fc.weight"], weights["fc.bias"] if reading.fc_bias else None
    )


def eagle3_forward(
    weights: Weights,
    sizes: Sizes,
    reading: Reading,
    text: Text,
    rotation: Callable[[Tensor], tuple[Tensor, Tensor]],
    steps: int = 3,
) -> Drafted:
    """Drafts of an EAGLE-3 head after every token of a text, `steps` deep.

    Later steps read the text's own tokens in place of drafts (the training-time test). Row t of step s
    has read the features up to t and the tokens up to t + 1 + s, and drafts the next token.
    """
    own = weights.get("embed_tokens.weight")
    embeds = text.embed(text.token_ids) if own is None else own[text.token_ids]
    layers = [
        Layer(
            weights,
            index,
            sizes,
            rotation,
            activation=reading.activation,
            bias=reading.qkv_bias,
        )
        for index in range(sizes.num_layers)
    ]
    pasts: list[list[tuple[Tensor, Tensor]]] = [[] for _ in layers]
    states, logits, follows = fused(weights, reading, text, sizes.norm_eps)[:-1], [], []
    for step in range(steps):
        count = len(text) - 1 - step
        states = states[:count]
        for layer, past in zip(layers, pasts, strict=True):
            states = _eagle3_layer(
                layer, past, reading, states, embeds[1 + step : 1 + step + count], step
            )
        output = norm(states, weights["norm.weight"], sizes.norm_eps)
        logits.append(head_logits(weights, reading.lm_head, output, text))
        follows.append(torch.arange(1 + step, len(text)))
        states = output if reading.norm_output else states
    rows = torch.cat(logits)
    if reading.lm_head == "target" and sizes.draft_vocab_size < rows.shape[-1]:
        rows = rows[:, target_ids_of(weights, reading.draft_ids, sizes.draft_vocab_size)]
    return Drafted(
        rows, target_ids_of(weights, reading.draft_ids, rows.shape[-1]), torch.cat(follows)
    )


def _eagle3_layer(
    layer: Layer,
    past: list[tuple[Tensor, Tensor]],
    reading: Reading,
    states: Tensor,
    embeds: Tensor,
    step: int,
) -> Tensor:
    """One layer at one step.

    A row sees the first step's rows up to itself, and of later steps only its own chain.
    """
    residual = states
    if layer.index == 0:
        normed = layer.normed("hidden_norm", states)
        residual = normed if reading.norm_before_residual else states
        inputs = torch.cat((layer.normed("input_layernorm", embeds), normed), -1)
    else:
        inputs = layer.normed(reading.later_norm, states)
    places = torch.arange(len(states))
    past.append(layer.keys_values(inputs, places + step))
    parts = []
    for earlier, (keys, values) in enumerate(past):
        columns = torch.arange(keys.shape[1])
        seen = columns <= places[:, None] if earlier == 0 else columns == places[:, None]
        if reading.window is not None:
            seen = seen & (columns + earlier > places[:, None] + step - reading.window)
        parts.append((keys, values, seen))
    return layer.finish(softmax_over(layer.queries(inputs, places + step), parts), residual)
