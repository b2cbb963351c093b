"""Layouts of published checkpoints: the tensors that make up each of the decoder's, by family."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from forerun.models.architecture import Architecture
from forerun.models.families import FAMILIES

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
    """A tensor of the decoder: published tensors stacked along its rows, plus an offset."""

    name: str
    parts: tuple[Published, ...]
    offset: float = 0.0

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
    names = FAMILIES[shape.family].published
    tensors = list(_tensors(shape))
    ignored = r"(.*\.)?(rotary_emb\.inv_freq|attn\.(masked_)?bias)"
    if shape.tied:
        ignored = rf"{ignored}|{re.escape(HEAD)}"
    else:
        tensors.append(_whole("head.weight", HEAD, shape.vocab_size, shape.hidden_size))
    prefix = names["embedding"].partition(".")[0] + "."
    return Layout(tuple(tensors), prefix, re.compile(ignored))


def _tensors(shape: Architecture) -> Iterator[Fused]:
    names, hidden = FAMILIES[shape.family].published, shape.hidden_size
    yield _whole("embedding.weight", f"{names['embedding']}.weight", shape.vocab_size, hidden)
    if shape.learned_positions:
        yield _whole("positions.weight", f"{names['positions']}.weight", shape.max_context, hidden)
    for index in range(shape.num_layers):
        yield from _layer(shape, f"layers.{index}", f"{names['layers']}.{index}")
    yield from _norm(shape, "norm", names["norm"], shape.norm_offset)


def _layer(shape: Architecture, ours: str, theirs: str) -> Iterator[Fused]:
    """The tensors of one layer, by the prefixes of its names here and in the checkpoint."""
    family = FAMILIES[shape.family]
    names, hidden, inner = family.published, shape.hidden_size, shape.intermediate_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    before = ("input_norm",) if shape.parallel else ("input_norm", "mlp_norm")
    after = ("post_attention_norm", "post_mlp_norm") if shape.norm_after else ()
    for name in (*(before if shape.norm_before else ()), *after):
        yield from _norm(shape, f"{ours}.{name}", f"{theirs}.{names[name]}", shape.norm_offset)
    if shape.query_key_norm:
        whole = shape.query_key_norm == "whole"
        for name, size in (("q_norm", queries), ("k_norm", keys)):
            size = size if whole else shape.head_dim
            key = f"{theirs}.{names[name]}.weight"
            yield _whole(f"{ours}.{name}.weight", key, size, offset=shape.norm_offset)
    if shape.num_experts:
        router = f"{theirs}.{names['router']}.weight"
        yield _whole(f"{ours}.router.weight", router, shape.num_experts, hidden)
        if shape.mlp_bias:
            yield _whole(
                f"{ours}.router.bias", f"{theirs}.{names['router']}.bias", shape.num_experts
            )
    if shape.sinks:
        yield _whole(f"{ours}.sinks.weight", f"{theirs}.{names['sinks']}", shape.num_heads)
    up = ("gate_up", (inner, inner)) if shape.gated else ("up", (inner,))
    for name, rows, width, bias in (
        ("qkv", (queries, keys, keys), hidden, shape.attention_bias),
        ("output", (hidden,), queries, shape.output_bias),
        (*up, hidden, shape.mlp_bias),
        ("down", (hidden,), inner, shape.mlp_bias),
    ):
        parts = [f"{theirs}.{part}" for part in names[name].split()]
        sizes = rows if len(parts) == len(rows) else (sum(rows),)
        # A name without the number of an expert stands once.
        outputs = {
            part.format(expert): size
            for expert in range(max(shape.num_experts, 1))
            for part, size in zip(parts, sizes, strict=True)
        }
        yield from _linear(f"{ours}.{name}", outputs, width, bias, family.transposed)


def _norm(shape: Architecture, name: str, key: str, offset: float) -> Iterator[Fused]:
    yield _whole(f"{name}.weight", f"{key}.weight", shape.hidden_size, offset=offset)
    if shape.norm_bias:
        yield _whole(f"{name}.bias", f"{key}.bias", shape.hidden_size)


def _whole(name: str, key: str, *shape: int, offset: float = 0.0) -> Fused:
    """A tensor that is published under one key, unchanged but for a number that is added."""
    return Fused(name, (Published(key, shape),), offset)


def _linear(
    name: str, outputs: Mapping[str, int], width: int, bias: bool, transposed: bool
) -> Iterator[Fused]:
    """One matrix from linear layers that read the same input, and its bias."""
    parts = tuple(
        Published(f"{key}.weight", (width, rows) if transposed else (rows, width), transposed)
        for key, rows in outputs.items()
    )
    yield Fused(f"{name}.weight", parts)
    if bias:
        biases = tuple(Published(f"{key}.bias", (rows,)) for key, rows in outputs.items())
        yield Fused(f"{name}.bias", biases)
