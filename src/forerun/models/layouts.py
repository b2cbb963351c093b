"""Which published tensors make up each of ours, by family: used by loading, training and export."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.models.architecture import Architecture

HEAD = "lm_head.weight"
"""The published key of the output head, in every family."""


@dataclass(frozen=True)
class Published:
    """A tensor of a published checkpoint: its key, its shape, and whether ours is its transpose."""

    key: str
    shape: tuple[int, ...]
    transposed: bool = False

    @property
    def rows(self) -> int:
        """Rows that it takes in our tensor."""
        return self.shape[-1] if self.transposed else self.shape[0]


@dataclass(frozen=True)
class Fused:
    """A tensor of ours: published tensors stacked along its rows."""

    name: str
    parts: tuple[Published, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of our tensor."""
        first = self.parts[0]
        tail = first.shape[:1] if first.transposed else first.shape[1:]
        return (sum(part.rows for part in self.parts), *tail)


@dataclass(frozen=True)
class Layout:
    """All tensors of a model.

    Attributes:
        tensors: ours, each with the published ones that it is made of.
        prefix: what the keys of a checkpoint of the bare model, without a head, lack.
        ignored: keys that carry nothing that we need: buffers, and the head of tied embeddings.
    """

    tensors: tuple[Fused, ...]
    prefix: str
    ignored: re.Pattern[str]

    @property
    def embedding(self) -> str:
        """The published key of the token embedding."""
        return next(t for t in self.tensors if t.name == "embedding.weight").parts[0].key

    def published(self) -> dict[str, tuple[int, ...]]:
        """Shapes by published key."""
        return {part.key: part.shape for tensor in self.tensors for part in tensor.parts}

    def num_parameters(self) -> int:
        """Parameters of the model, shared ones counted once."""
        return sum(torch.Size(shape).numel() for shape in self.published().values())

    def key(self, found: str) -> str:
        """The published key that a checkpoint's key stands for."""
        return found if found in self.published() else self.prefix + found

    def fuse(
        self, read: Callable[[Published], Tensor], dtype: torch.dtype, device: torch.device
    ) -> dict[str, Tensor]:
        """Our tensors by name, filled part by part, so that no tensor exists twice for long.

        Args:
            read: returns a published tensor; its own errors pass through.
        """
        return {tensor.name: _fill(tensor, read, dtype, device) for tensor in self.tensors}

    def publish(self, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The published tensors, by key, that our `weights` were made of: `fuse` undone."""
        for tensor in self.tensors:
            rows = [part.rows for part in tensor.parts]
            pieces = torch.split(weights[tensor.name], rows)
            for part, piece in zip(tensor.parts, pieces, strict=True):
                yield part.key, (piece.t() if part.transposed else piece).contiguous()


def _fill(
    tensor: Fused, read: Callable[[Published], Tensor], dtype: torch.dtype, device: torch.device
) -> Tensor:
    ours = torch.empty(tensor.shape, dtype=dtype, device=device)
    start = 0
    for part in tensor.parts:
        source = read(part)
        ours[start : start + part.rows].copy_(source.t() if part.transposed else source)
        start += part.rows
    return ours


def layout_of(shape: Architecture) -> Layout:
    """The layout of a decoder."""
    return _gpt2(shape) if shape.family == "gpt2" else _llama_like(shape)


def _projection(name: str, outputs: Mapping[str, int], width: int, bias: bool) -> Iterator[Fused]:
    """One matrix of ours from linear layers that read the same input, and its bias."""
    parts = tuple(Published(f"{key}.weight", (rows, width)) for key, rows in outputs.items())
    yield Fused(f"{name}.weight", parts)
    if bias:
        biases = tuple(Published(f"{key}.bias", (rows,)) for key, rows in outputs.items())
        yield Fused(f"{name}.bias", biases)


def _llama_layer(shape: Architecture, index: int) -> Iterator[Fused]:
    ours, theirs = f"layers.{index}", f"model.layers.{index}"
    attention, mlp = f"{theirs}.self_attn", f"{theirs}.mlp"
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    norms = {"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    for name, key in norms.items():
        yield Fused(f"{ours}.{name}.weight", (Published(f"{theirs}.{key}.weight", (hidden,)),))
    if shape.query_key_norm:
        for name in ("q_norm", "k_norm"):
            part = Published(f"{attention}.{name}.weight", (shape.head_dim,))
            yield Fused(f"{ours}.{name}.weight", (part,))
    outputs = dict(zip("qkv", (queries, keys, keys), strict=True))
    qkv = {f"{attention}.{letter}_proj": rows for letter, rows in outputs.items()}
    yield from _projection(f"{ours}.qkv", qkv, hidden, shape.attention_bias)
    output = {f"{attention}.o_proj": hidden}
    yield from _projection(f"{ours}.output", output, queries, shape.output_bias)
    gate_up = {f"{mlp}.gate_proj": inner, f"{mlp}.up_proj": inner}
    yield from _projection(f"{ours}.gate_up", gate_up, hidden, shape.mlp_bias)
    yield from _projection(f"{ours}.down", {f"{mlp}.down_proj": hidden}, inner, shape.mlp_bias)


def _llama_like(shape: Architecture) -> Layout:
    table = (shape.vocab_size, shape.hidden_size)
    tensors = [Fused("embedding.weight", (Published("model.embed_tokens.weight", table),))]
    for index in range(shape.num_layers):
        tensors.extend(_llama_layer(shape, index))
    norm = Published("model.norm.weight", (shape.hidden_size,))
    tensors.append(Fused("norm.weight", (norm,)))
    return _with_head(shape, tensors, "model.", r"(.*\.)?rotary_emb\.inv_freq")


def _gpt2_layer(shape: Architecture, index: int) -> Iterator[Fused]:
    ours, theirs = f"layers.{index}", f"transformer.h.{index}"
    hidden, inner = shape.hidden_size, shape.intermediate_size
    for name, key in {"input_norm": "ln_1", "mlp_norm": "ln_2"}.items():
        for kind in ("weight", "bias"):
            yield Fused(f"{ours}.{name}.{kind}", (Published(f"{theirs}.{key}.{kind}", (hidden,)),))
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
        bias = Published(f"{theirs}.{key}.bias", (outputs,))
        yield Fused(f"{ours}.{name}.bias", (bias,))


def _gpt2(shape: Architecture) -> Layout:
    hidden = shape.hidden_size
    tables = {
        "embedding": ("wte", (shape.vocab_size, hidden)),
        "positions": ("wpe", (shape.max_context, hidden)),
    }
    tensors = [
        Fused(f"{name}.weight", (Published(f"transformer.{key}.weight", size),))
        for name, (key, size) in tables.items()
    ]
    for index in range(shape.num_layers):
        tensors.extend(_gpt2_layer(shape, index))
    for kind in ("weight", "bias"):
        tensors.append(Fused(f"norm.{kind}", (Published(f"transformer.ln_f.{kind}", (hidden,)),)))
    return _with_head(shape, tensors, "transformer.", r"(.*\.)?attn\.(masked_)?bias")


def _with_head(shape: Architecture, tensors: list[Fused], prefix: str, ignored: str) -> Layout:
    """Close a layout: a tied head is the embedding, and its published copy is ignored."""
    if shape.tied:
        ignored = rf"{ignored}|{re.escape(HEAD)}"
    else:
        table = Published(HEAD, (shape.vocab_size, shape.hidden_size))
        tensors.append(Fused("head.weight", (table,)))
    return Layout(tuple(tensors), prefix, re.compile(ignored))
