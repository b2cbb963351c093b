"""The forward pass that all our decoders share; a family adds embedding, layer and head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from forerun.contracts import LogitsFor
from forerun.core import Exactness, ForwardOutput
from forerun.errors import CacheError
from forerun.kv_cache import Appending, CacheView, StaticCache
from forerun.models.architecture import Architecture
from forerun.models.attention import Sight, attend, sight
from forerun.models.layers import check_layers
from forerun.models.placement import dtype_name


@dataclass(frozen=True)
class Step:
    """What all layers of one forward pass share.

    Attributes:
        appending: the new tokens' place in the cache.
        sights: who sees whom, by sliding window.
        rotation: cosines and sines [B, 1, n, head_dim] of the rotary embedding, if there is one.
    """

    appending: Appending
    sights: dict[int | None, Sight]
    rotation: tuple[Tensor, Tensor] | None


class Transformer(ABC):
    """A decoder over a `StaticCache`; implements `forerun.contracts.CausalLM`.

    Args:
        shape: of the model.
        weights: our tensors by name, as `layouts` names them, on one device in one dtype.
        name: how messages and reports call the model.
    """

    exactness = Exactness.DISTRIBUTIONAL

    def __init__(self, shape: Architecture, weights: Mapping[str, Tensor], name: str) -> None:
        self.shape, self.weights, self.name = shape, weights, name
        self.vocab_size, self.num_layers = shape.vocab_size, shape.num_layers
        self.hidden_size, self.max_context = shape.hidden_size, shape.max_context
        embedding = weights["embedding.weight"]
        self.device, self.dtype = embedding.device, embedding.dtype
        self.precision = dtype_name(self.dtype)
        self.head_weight = embedding if shape.tied else weights["head.weight"]

    def new_cache(self, rows: int, capacity: int) -> StaticCache:
        """An empty cache of `rows` rows with `capacity` slots each."""
        shape = self.shape
        sizes = (shape.num_kv_heads, capacity, shape.head_dim)
        return StaticCache(self.num_layers, rows, *sizes, self.dtype, self.device)

    @torch.no_grad()
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        cache: CacheView,
        tree_mask: Tensor | None = None,
        hidden_layers: Sequence[int] = (),
        logits_for: LogitsFor = "all",
        layers: range | None = None,
        hidden_in: Tensor | None = None,
    ) -> ForwardOutput:
        """Run new tokens and append their keys and values, as `forerun.contracts.CausalLM` says.

        Raises:
            CacheError: when a row is full, its layers differ in length, or a position lies
                beyond the context.
            ConfigError: for layers that the model does not have or that are not run.
        """
        layers = check_layers(self, layers, hidden_layers, hidden_in)
        appending = cache.append(positions, layers)
        step = self._step(appending, tree_mask, layers)
        hidden = self.embed(token_ids, positions) if hidden_in is None else hidden_in
        wanted = {layers.start: hidden} if layers.start in hidden_layers else {}
        for index in layers:
            hidden = self.layer(index, hidden, step)
            if index + 1 in hidden_layers:
                wanted[index + 1] = hidden
        logits = None
        if layers.stop == self.num_layers and logits_for != "none":
            logits = self.head(hidden if logits_for == "all" else _last(hidden, appending))
        return ForwardOutput(logits, wanted)

    def _step(self, appending: Appending, tree_mask: Tensor | None, layers: range) -> Step:
        furthest = max(max(row) for row in appending.host_positions)
        if furthest >= self.max_context:
            raise CacheError(
                f"position {furthest} lies beyond the context of {self.name}, "
                f"{self.max_context} tokens; end the text or draft less far."
            )
        windows = {self.shape.windows[layer] for layer in layers}
        sights = {window: sight(appending, tree_mask, window, self.dtype) for window in windows}
        return Step(appending, sights, self.rotation(appending.positions, furthest))

    def attention(
        self, index: int, step: Step, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        """Store key and value [B, kv_heads, n, d], attend with query [B, heads, n, d]."""
        seen = step.sights[self.shape.windows[index]]
        step.appending.write(index, key, value)
        keys, values = step.appending.read(index, seen.first)
        return attend(query, keys, values, seen, self.shape.head_dim**-0.5)

    def rotation(self, positions: Tensor, furthest: int) -> tuple[Tensor, Tensor] | None:
        """The rotary embedding's factors for `positions`, of which `furthest` is the largest."""
        return None

    @abstractmethod
    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """Hidden states [B, n, hidden_size] below the first layer."""

    @abstractmethod
    def layer(self, index: int, hidden: Tensor, step: Step) -> Tensor:
        """Run one layer on hidden states [B, n, hidden_size]."""

    @torch.no_grad()
    def head(self, hidden: Tensor) -> Tensor:
        """Logits [B, n, V] of hidden states [B, n, hidden_size]: final norm, then the output head."""
        return functional.linear(self.final_norm(hidden), self.head_weight)

    @abstractmethod
    def final_norm(self, hidden: Tensor) -> Tensor:
        """What stands between the last layer and the head, on [B, n, hidden_size]."""


def _last(hidden: Tensor, appending: Appending) -> Tensor:
    """The hidden states [B, 1, hidden_size] of each row's last token that is no padding."""
    if appending.even:
        return hidden[:, -1:]
    last = torch.tensor([max(count, 1) - 1 for count in appending.counts], device=hidden.device)
    return hidden.gather(1, last[:, None, None].expand(-1, 1, hidden.shape[-1]))
