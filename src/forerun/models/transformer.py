"""The forward pass that all our decoders share; a family adds embedding, layer and head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from forerun.contracts import Ability
from forerun.core import Batch, Exactness, ForwardOutput
from forerun.errors import CacheError
from forerun.kv_cache import Appending, StaticCache
from forerun.models.architecture import Architecture
from forerun.models.attention import Visibility, attend, visibility
from forerun.models.layers import layers_to_run
from forerun.models.placement import dtype_name


@dataclass(frozen=True)
class Step:
    """What all layers of one forward pass share.

    Attributes:
        appending: where the new tokens lie in the cache.
        visible: which slots they see, by sliding window.
        rotation: cosines and sines [B, 1, n, head_dim] of the rotary embedding, if there is one.
    """

    appending: Appending
    visible: dict[int | None, Visibility]
    rotation: tuple[Tensor, Tensor] | None


class Transformer(ABC):
    """A decoder over a `StaticCache`; implements `forerun.contracts.CausalLM`.

    Args:
        shape: of the model.
        weights: our tensors by name, as `layouts` names them, on one device in one dtype.
        name: how messages and reports call the model.
    """

    exactness = Exactness.DISTRIBUTIONAL
    abilities: frozenset[Ability] = frozenset()

    def __init__(self, shape: Architecture, weights: Mapping[str, Tensor], name: str) -> None:
        self.shape, self.weights, self.name = shape, weights, name
        self.vocab_size, self.num_layers = shape.vocab_size, shape.num_layers
        self.hidden_size, self.max_context = shape.hidden_size, shape.max_context
        embedding = weights["embedding.weight"]
        self.device, self.dtype = embedding.device, embedding.dtype
        self.precision = dtype_name(self.dtype)
        self.head_weight = embedding if shape.tied else weights["head.weight"]

    def new_cache(self, rows: int, capacity: int) -> StaticCache:
        """An empty cache of `rows` rows of `capacity` tokens each."""
        shape = self.shape
        sizes = (shape.num_kv_heads, capacity, shape.head_dim)
        return StaticCache(self.num_layers, rows, *sizes, self.dtype, self.device)

    @torch.no_grad()
    def forward(self, batch: Batch, cache: StaticCache) -> ForwardOutput:
        """Run new tokens and append their keys and values, as `forerun.contracts.CausalLM` says.

        Raises:
            CacheError: for a batch that contradicts the cache, a full row, or a position beyond the
                context.
            ConfigError: for layers that the model does not have or that are not run.
        """
        layers = layers_to_run(self, batch)
        if batch.furthest >= self.max_context:
            raise CacheError.beyond_context(batch.furthest, self.max_context)
        inputs = np.stack((batch.padded(batch.token_ids, 0), batch.padded(batch.positions, -1)))
        token_ids, positions = torch.from_numpy(inputs).to(self.device)
        step = self._step(cache.append(batch, positions, layers), layers)
        hidden = batch.hidden_in
        if hidden is None:
            hidden = self.enter(token_ids, positions)
        states = {layers.start: hidden} if layers.start in batch.hidden_layers else {}
        for index in layers:
            hidden = self.layer(index, hidden, step)
            if index + 1 in batch.hidden_layers:
                states[index + 1] = hidden
        logits = None
        if layers.stop == self.num_layers and batch.logits_for != "none":
            wanted = hidden if batch.logits_for == "all" else _last(hidden, batch)
            logits = self.lm_head(self.final_norm(wanted))
        return ForwardOutput(logits, states)

    def _step(self, appending: Appending, layers: range) -> Step:
        windows = {self.shape.windows[layer] for layer in layers}
        visible = {window: visibility(appending, window, self.dtype) for window in windows}
        rotation = self.rotation(appending.positions, appending.batch.furthest)
        return Step(appending, visible, rotation)

    def attention(
        self, index: int, step: Step, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        """Store key and value [B, kv_heads, n, d], attend with query [B, heads, n, d]."""
        visible = step.visible[self.shape.windows[index]]
        step.appending.write(index, key, value)
        keys, values = step.appending.read(index, visible.first)
        return attend(query, keys, values, visible, self.shape.head_dim**-0.5)

    def rotation(self, positions: Tensor, furthest: int) -> tuple[Tensor, Tensor] | None:
        """The rotary embedding's factors for `positions`, of which `furthest` is the largest."""
        return None

    def embed(self, token_ids: Tensor) -> Tensor:
        """The embeddings [B, n, hidden_size] of token ids [B, n], without those of positions."""
        return functional.embedding(token_ids, self.weights["embedding.weight"])

    def enter(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """Hidden states [B, n, hidden_size] below the first layer."""
        return self.embed(token_ids)

    @abstractmethod
    def layer(self, index: int, hidden: Tensor, step: Step) -> Tensor:
        """Run one layer on hidden states [B, n, hidden_size]."""

    @abstractmethod
    def final_norm(self, hidden: Tensor) -> Tensor:
        """What stands between the last layer and the output head, on [B, n, hidden_size]."""

    def lm_head(self, hidden: Tensor) -> Tensor:
        """Logits [B, n, V] of hidden states [B, n, hidden_size] behind the final norm."""
        return functional.linear(hidden, self.head_weight)


def _last(hidden: Tensor, batch: Batch) -> Tensor:
    """The hidden states [B, 1, hidden_size] of each row's last token that is not padding."""
    if batch.even:
        return hidden[:, -1:]
    last = torch.tensor([count - 1 for count in batch.counts], device=hidden.device)
    return hidden.gather(1, last[:, None, None].expand(-1, 1, hidden.shape[-1]))
