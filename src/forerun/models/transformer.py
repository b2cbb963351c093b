"""Forerun's own decoder, for every family that it knows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from forerun.compression import Compression
from forerun.contracts import Ability, AttentionShape
from forerun.core import Batch, Exactness, ForwardOutput, View
from forerun.costs.precision import bytes_of_text
from forerun.errors import CacheError
from forerun.kv_cache import CompressedCache, StaticCache
from forerun.models.architecture import ACTIVATIONS, Architecture
from forerun.models.attention import (
    AttentionStep,
    CacheParts,
    apply_gate,
    clamped_swiglu,
    norm,
    soft_cap,
    visibility,
)
from forerun.models.families import CLAMPED_SWIGLU
from forerun.models.layers import check_evicts, layers_to_run
from forerun.models.rope import Rotation, rotary_tables, rotated_to
from forerun.models.run_config import DeviceMemory, dtype_name


class Transformer:
    """A decoder over a `StaticCache`; implements `forerun.contracts.CausalLM`.

    The architecture and the names of the weights say in what a family differs from others.

    Args:
        shape: architecture of the model.
        weights: weights by name, as in `layouts`, on one device in one dtype.
        name: name of the model in messages and reports.
    """

    exactness = Exactness.DISTRIBUTIONAL
    abilities = frozenset({Ability.VIEWS, Ability.EVICTION, Ability.SESSIONS})

    def __init__(self, shape: Architecture, weights: Mapping[str, Tensor], name: str) -> None:
        self.shape, self.weights, self.name = shape, weights, name
        self.vocab_size, self.num_layers = shape.vocab_size, shape.num_layers
        self.hidden_size, self.max_context = shape.hidden_size, shape.max_context
        embedding = weights["embedding.weight"]
        self.device, self.dtype = embedding.device, embedding.dtype
        self.precision, self.kv_dtype = dtype_name(self.dtype), "auto"
        self.head_dim = shape.head_dim
        self._head = embedding if shape.tied else weights["head.weight"]
        self._inside = sum(
            weight.numel() * shape.share_read(name)
            for name, weight in weights.items()
            if name.startswith("layers.")
        )
        self._gate = (
            clamped_swiglu
            if shape.activation == CLAMPED_SWIGLU
            else partial(apply_gate, ACTIVATIONS[shape.activation])
        )
        self._layers = [_parts(weights, f"layers.{index}.") for index in range(shape.num_layers)]
        self._positions = weights.get("positions.weight")
        self._rotary = rotary_tables(shape, self.dtype, self.device)
        self._attention = [
            AttentionShape(
                shape.num_heads,
                shape.num_kv_heads,
                shape.head_dim,
                window=window,
                norm_eps=shape.norm_eps,
                scale=shape.attention_scale,
                score_cap=shape.score_cap,
            )
            for window in shape.windows
        ]
        self._memory = DeviceMemory(self.device, f"a forward of {name}", "run fewer tokens at once")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, precision={self.precision!r})"

    def bytes_read(self, context: int, layers: int, view: View | None = None) -> float:
        """Bytes of weights, keys and values that one token reads; see `forerun.contracts.ReadsViews`."""
        shape, size = self.shape, self.dtype.itemsize
        share = layers / self.num_layers
        heads = (shape.num_kv_heads, shape.head_dim)
        cached = bytes_of_text(context, heads, self.kv_dtype, size, view)
        return size * (self._head.numel() + share * self._inside) + layers * cached

    def new_cache(self, rows: int, capacity: int) -> StaticCache:
        """An empty cache of `rows` rows of `capacity` tokens each.

        Raises:
            CacheError: for fewer than one row or token.
            MemoryLimitError: if it does not fit into the device's memory.
        """
        shape = self.shape
        sizes = (rows, shape.num_kv_heads, capacity, shape.head_dim)
        with self._cache_memory(rows, capacity):
            return StaticCache(self.num_layers, sizes, self.dtype, self.device, self.kv_dtype)

    def compressed_cache(
        self, rows: int, capacity: int, compression: Compression
    ) -> CompressedCache:
        """An empty cache of `rows` rows of `capacity` tokens each, some of which will be evicted.

        Raises:
            CacheError, MemoryLimitError: as in `new_cache`.
            UnsupportedModelError: for a model with sliding windows shorter than its context.
        """
        shape = self.shape
        check_evicts(shape, self.name, compression)
        with self._cache_memory(rows, capacity):
            return CompressedCache(
                self.num_layers,
                (rows, shape.num_kv_heads, capacity, shape.head_dim),
                self.dtype,
                self.device,
                compression=compression,
                rotate=partial(rotated_to, self._rotary.get(shape.ropes[0])),
                heads=shape.num_heads,
                kv_dtype=self.kv_dtype,
            )

    def _cache_memory(self, rows: int, capacity: int) -> DeviceMemory:
        what = f"a cache of {rows} rows of {capacity} tokens"
        return DeviceMemory(self.device, what, "use a smaller context or batch")

    @torch.no_grad()
    def forward(self, batch: Batch, cache: StaticCache) -> ForwardOutput:
        """Run new tokens and append their keys and values, as `forerun.contracts.CausalLM` says.

        Raises:
            CacheError: for a batch that contradicts the cache, a full row, or a position beyond the
                context.
            ConfigError: for layers that the model does not have or that are not run.
            MemoryLimitError: if the device has no memory left.
        """
        with self._memory:
            return self._forward(batch, cache)

    def _forward(self, batch: Batch, cache: StaticCache) -> ForwardOutput:
        layers = layers_to_run(self, batch)
        if batch.furthest >= self.max_context:
            raise CacheError.beyond_context(batch.furthest, self.max_context)
        inputs = np.stack((batch.padded(batch.token_ids, 0), batch.padded(batch.positions, -1)))
        token_ids, positions = torch.from_numpy(inputs).to(self.device)
        appending = cache.append(batch, positions, layers)
        windows = {self.shape.windows[layer] for layer in layers}
        visible = {window: visibility(appending, window, self.dtype) for window in windows}
        step = AttentionStep(appending, visible)
        rotations = {
            kind: table.at(positions, batch.furthest) for kind, table in self._rotary.items()
        }
        hidden = batch.hidden_in
        if hidden is None:
            hidden = self.embed(token_ids)
            if self._positions is not None:
                hidden = hidden + functional.embedding(positions.clamp(min=0), self._positions)
        states = {layers.start: hidden} if layers.start in batch.hidden_layers else {}
        for index in layers:
            rotation = rotations.get(self.shape.ropes[index])
            hidden = self._layer(index, hidden, step, rotation)
            if index + 1 in batch.hidden_layers:
                states[index + 1] = hidden
        logits = None
        if layers.stop == self.num_layers and batch.logits_for != "none":
            wanted = hidden if batch.logits_for == "all" else _last(hidden, batch)
            logits = self.lm_head(self.final_norm(wanted))
        return ForwardOutput(logits, states)

    def _layer(
        self, index: int, hidden: Tensor, step: AttentionStep, rotation: Rotation | None
    ) -> Tensor:
        parts = self._layers[index]
        read = self._normed(parts, "input_norm", hidden)
        mixed = step.attention(index, self._attention[index], parts, read, rotation)
        hidden = self._add(hidden, self._normed(parts, "post_attention_norm", mixed))
        if not self.shape.parallel:
            read = self._normed(parts, "mlp_norm", hidden)
        made = self._routed(parts, read) if "router" in parts else self._mlp(parts, read)
        return self._add(hidden, self._normed(parts, "post_mlp_norm", made))

    def _mlp(self, parts: CacheParts, read: Tensor) -> Tensor:
        if "up" in parts:
            inner = ACTIVATIONS[self.shape.activation](functional.linear(read, *parts["up"]))
        else:
            inner = self._gate(functional.linear(read, *parts["gate_up"]))
        return functional.linear(inner, *parts["down"])

    def _routed(self, parts: CacheParts, read: Tensor) -> Tensor:
        """Sum of what each token's experts return, weighted by the router; each is read once."""
        shape, states = self.shape, read.flatten(0, -2)
        probs = functional.linear(states, *parts["router"]).softmax(-1, dtype=torch.float32)
        weights, chosen = probs.topk(shape.experts_per_token)
        if shape.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        up, down = (_by_expert(parts[name], shape.num_experts) for name in ("gate_up", "down"))
        made = torch.zeros_like(states)
        for expert in sorted(set(chosen.flatten().tolist())):
            rows, places = (chosen == expert).nonzero(as_tuple=True)
            inner = self._gate(functional.linear(states[rows], *up[expert]))
            out = functional.linear(inner, *down[expert]) * weights[rows, places, None]
            made.index_add_(0, rows, out.to(made.dtype))
        return made.view_as(read)

    def _normed(self, parts: CacheParts, name: str, hidden: Tensor) -> Tensor:
        """The norm of a name; a layer without it leaves hidden states unchanged."""
        if name not in parts:
            return hidden
        return norm(hidden, *parts[name], self.shape.norm_eps, self.shape.layer_norm)

    def _add(self, hidden: Tensor, branch: Tensor) -> Tensor:
        scale = self.shape.residual_scale
        return hidden + (branch if scale == 1 else branch * scale)

    def embed(self, token_ids: Tensor) -> Tensor:
        """The scaled embeddings [B, n, hidden_size] of token ids [B, n], without those of positions."""
        scale = self.shape.embedding_scale
        found = functional.embedding(token_ids, self.weights["embedding.weight"])
        # A scale is rounded to the weights' precision, as in transformers.
        return found if scale == 1 else found * torch.tensor(scale, dtype=found.dtype)

    def final_norm(self, hidden: Tensor) -> Tensor:
        """Apply the norm before the output head to [B, n, hidden_size]."""
        weight, bias = self.weights["norm.weight"], self.weights.get("norm.bias")
        return norm(hidden, weight, bias, self.shape.norm_eps, self.shape.layer_norm)

    def lm_head(self, hidden: Tensor) -> Tensor:
        """Logits [B, n, V] of hidden states [B, n, hidden_size] after the final norm."""
        logits, scale = functional.linear(hidden, self._head), self.shape.logit_scale
        return soft_cap(logits if scale == 1 else logits * scale, self.shape.logit_cap)


def _parts(weights: Mapping[str, Tensor], prefix: str) -> CacheParts:
    parts = {}
    for key, weight in weights.items():
        if key.startswith(prefix) and key.endswith(".weight"):
            name = key.removesuffix(".weight")
            parts[name.removeprefix(prefix)] = (weight, weights.get(f"{name}.bias"))
    return parts


def _by_expert(
    part: tuple[Tensor, Tensor | None], experts: int
) -> list[tuple[Tensor, Tensor | None]]:
    """Weight and bias of each expert, from those of all, stacked."""
    weight, bias = part
    biases = [None] * experts if bias is None else bias.chunk(experts)
    return list(zip(weight.chunk(experts), biases, strict=True))


def _last(hidden: Tensor, batch: Batch) -> Tensor:
    """Hidden states [B, 1, hidden_size] of each row's last token that is not padding."""
    if batch.even:
        return hidden[:, -1:]
    last = torch.tensor(batch.counts, device=hidden.device) - 1
    return hidden[torch.arange(len(batch), device=hidden.device), last][:, None]
