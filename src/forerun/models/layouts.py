"""Layouts of published checkpoints: the tensors that make up each of the decoder's, by family."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from forerun.models.architecture import Architecture

HEAD = "lm_head.weight"
"""The published key of the output head, in every family."""


@dataclass(frozen=True)
class Published:
    """A tensor of a published checkpoint: its key, its shape, and whether it is stored transposed."""

    key: str
    shape: tuple[int, ...]
    transposed: bool = False

    @property
    def rows(self) -> int:
        """Number of rows that the tensor has in the stacked one."""
        return self.shape[-1] if self.transposed else self.shape[0]


@dataclass(frozen=True)
class Fused:
    """A tensor of the decoder: published tensors stacked along its rows."""

    name: str
    parts: tuple[Published, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the stacked tensor."""
        first = self.parts[0]
        tail = first.shape[:1] if first.transposed else first.shape[1:]
        return (sum(part.rows for part in self.parts), *tail)


@dataclass(frozen=True)
class Layout:
    """All tensors of a model.

    Attributes:
        tensors: the decoder's tensors, each with the published ones that it is made of.
        prefix: part that is missing from the keys of a checkpoint without an output head.
        ignored: keys of tensors that are not needed: buffers, and the head of tied embeddings.
    """

    tensors: tuple[Fused, ...]
    prefix: str
    ignored: re.Pattern[str]

    @property
    def embedding(self) -> str:
        """The published key of the token embedding."""
        return next(t for t in self.tensors if t.name == "embedding.weight").parts[0].key

    @cached_property
    def published(self) -> dict[str, tuple[int, ...]]:
        """Shapes by published key."""
        return {part.key: part.shape for tensor in self.tensors for part in tensor.parts}

    def num_parameters(self) -> int:
        """Parameters of the model, shared ones counted once."""
        return sum(math.prod(shape) for shape in self.published.values())

    def key(self, stored: str) -> str:
        """The published key that a checkpoint's key stands for."""
        return stored if stored in self.published else self.prefix + stored


def layout_of(shape: Architecture) -> Layout:
    """The layout of a family, with an output head of its own unless it is tied to the embedding."""
    gpt2 = shape.family == "gpt2"
    tensors = list(_gpt2(shape) if gpt2 else _llama_like(shape))
    prefix = "transformer." if gpt2 else "model."
    ignored = r"(.*\.)?attn\.(masked_)?bias" if gpt2 else r"(.*\.)?rotary_emb\.inv_freq"
    if shape.tied:
        ignored = rf"{ignored}|{re.escape(HEAD)}"
    else:
        tensors.append(_whole("head.weight", HEAD, shape.vocab_size, shape.hidden_size))
    return Layout(tuple(tensors), prefix, re.compile(ignored))


def _llama_like(shape: Architecture) -> Iterator[Fused]:
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    yield _whole("embedding.weight", "model.embed_tokens.weight", shape.vocab_size, hidden)
    for index in range(shape.num_layers):
        ours, theirs = f"layers.{index}", f"model.layers.{index}"
        attention, mlp = f"{theirs}.self_attn", f"{theirs}.mlp"
        yield _whole(f"{ours}.input_norm.weight", f"{theirs}.input_layernorm.weight", hidden)
        yield _whole(f"{ours}.mlp_norm.weight", f"{theirs}.post_attention_layernorm.weight", hidden)
        if shape.query_key_norm:
            for name in ("q_norm.weight", "k_norm.weight"):
                yield _whole(f"{ours}.{name}", f"{attention}.{name}", shape.head_dim)
        qkv = {
            f"{attention}.q_proj": queries,
            f"{attention}.k_proj": keys,
            f"{attention}.v_proj": keys,
        }
        yield from _linear(f"{ours}.qkv", qkv, hidden, shape.attention_bias)
        output = {f"{attention}.o_proj": hidden}
        yield from _linear(f"{ours}.output", output, queries, shape.output_bias)
        gate_up = {f"{mlp}.gate_proj": inner, f"{mlp}.up_proj": inner}
        yield from _linear(f"{ours}.gate_up", gate_up, hidden, shape.mlp_bias)
        yield from _linear(f"{ours}.down", {f"{mlp}.down_proj": hidden}, inner, shape.mlp_bias)
    yield _whole("norm.weight", "model.norm.weight", hidden)


def _gpt2(shape: Architecture) -> Iterator[Fused]:
    hidden, inner = shape.hidden_size, shape.intermediate_size
    yield _whole("embedding.weight", "transformer.wte.weight", shape.vocab_size, hidden)
    yield _whole("positions.weight", "transformer.wpe.weight", shape.max_context, hidden)
    norms = {"norm": "transformer.ln_f"}
    for index in range(shape.num_layers):
        ours, theirs = f"layers.{index}", f"transformer.h.{index}"
        norms |= {f"{ours}.input_norm": f"{theirs}.ln_1", f"{ours}.mlp_norm": f"{theirs}.ln_2"}
        projections = {
            "qkv": ("attn.c_attn", hidden, 3 * hidden),
            "output": ("attn.c_proj", hidden, hidden),
            "up": ("mlp.c_fc", hidden, inner),
            "down": ("mlp.c_proj", inner, hidden),
        }
        for name, (key, inputs, outputs) in projections.items():
            # GPT-2 publishes [inputs, outputs], the transpose of a linear layer's matrix.
            weight = Published(f"{theirs}.{key}.weight", (inputs, outputs), transposed=True)
            yield Fused(f"{ours}.{name}.weight", (weight,))
            yield _whole(f"{ours}.{name}.bias", f"{theirs}.{key}.bias", outputs)
    for name, key in norms.items():
        yield _whole(f"{name}.weight", f"{key}.weight", hidden)
        yield _whole(f"{name}.bias", f"{key}.bias", hidden)


def _whole(name: str, key: str, *shape: int) -> Fused:
    """A tensor that is published under one key, unchanged."""
    return Fused(name, (Published(key, shape),))


def _linear(name: str, outputs: Mapping[str, int], width: int, bias: bool) -> Iterator[Fused]:
    """One matrix from linear layers that read the same input, and its bias."""
    parts = tuple(Published(f"{key}.weight", (rows, width)) for key, rows in outputs.items())
    yield Fused(f"{name}.weight", parts)
    if bias:
        biases = tuple(Published(f"{key}.bias", (rows,)) for key, rows in outputs.items())
        yield Fused(f"{name}.bias", biases)
