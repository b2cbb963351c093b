"""The toy model in layers that run apart, for drafters that are part of their target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from forerun.core import Batch, ForwardOutput
from forerun.kv_cache import check_length, check_path, check_row, layers_to_trim
from forerun.models.layers import layers_to_run
from forerun.testing.toy import ToyCache, ToyModel, append, wanted_logits


class LayeredToyCache(ToyCache):
    """Remembers the token ids of each row, in each layer by itself."""

    def __init__(self, num_layers: int, rows: int, capacity: int) -> None:
        super().__init__(rows, capacity)
        self.layers: list[list[list[int]]] = [[[] for _ in range(rows)] for _ in range(num_layers)]

    def length(self, row: int, layer: int | None = None) -> int:
        check_row(row, self.rows)
        if layer is not None:
            return len(self.layers[layer][row])
        return min(len(layer[row]) for layer in self.layers)

    def keep(self, row: int, length: int, path: Sequence[int]) -> None:
        check_row(row, self.rows)
        check_path(row, length, path, max(len(layer[row]) for layer in self.layers))
        for layer in self.layers:
            held = layer[row]
            held[length:] = [held[length + token] for token in path if length + token < len(held)]

    def trim(self, row: int, length: int, layers: range | None = None) -> None:
        check_row(row, self.rows)
        check_length(row, length)
        for index in layers_to_trim(layers, len(self.layers)):
            del self.layers[index][row][length:]


class LayeredToyModel(ToyModel):
    """The same logits as `ToyModel`, bit for bit, from layers that run apart.

    A hidden state is a row of logits in the making: layer i adds the table of the token i places
    back, so that a state after any layer can be read by the head, which changes nothing.
    """

    def __init__(self, vocab_size: int = 11, order: int = 3, **options: Any) -> None:
        super().__init__(vocab_size, order, **options)
        self.num_layers, self.hidden_size = order, vocab_size

    def new_cache(self, rows: int, capacity: int) -> LayeredToyCache:
        return LayeredToyCache(self.num_layers, rows, capacity)

    def embed(self, token_ids: Tensor) -> Tensor:
        """The states that nothing has been added to yet."""
        return torch.zeros(*token_ids.shape, self.vocab_size, dtype=self.dtype)

    def final_norm(self, hidden: Tensor) -> Tensor:
        """The hidden states themselves."""
        return hidden

    def lm_head(self, hidden: Tensor) -> Tensor:
        """The hidden states themselves."""
        return hidden

    def forward(self, batch: Batch, cache: Any) -> ForwardOutput:
        """See `forerun.contracts.CausalLM.forward`.

        Raises:
            CacheError: for a batch that contradicts the cache.
            ConfigError: for layers that the model does not have or that are not run.
        """
        layers = layers_to_run(self, batch)
        self._check(batch, cache, layers)
        shape = (len(batch), batch.width, self.vocab_size)
        state = batch.hidden_in
        if state is None:
            state = torch.zeros(shape, dtype=self.dtype)
        states = {layers.start: state}
        for layer in layers:
            added = torch.zeros(shape, dtype=self.dtype)
            for index, row in enumerate(batch.rows):
                # Layer i adds what the token i places back says.
                for new, seen in enumerate(append(batch, index, cache.layers[layer][row])):
                    if layer < len(seen):
                        added[index, new] = self.tables[layer, seen[-1 - layer]]
            states[layer + 1] = states[layer] + added
        logits: Tensor | None = None
        if layers.stop == self.num_layers:
            logits = wanted_logits(batch, states[layers.stop])
        return ForwardOutput(logits, {layer: states[layer] for layer in batch.hidden_layers})
