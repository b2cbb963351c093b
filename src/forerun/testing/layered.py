"""The toy model in layers that run apart, for drafters that are part of their target."""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import Any

import torch
from torch import Tensor

from forerun.contracts import LogitsFor
from forerun.core import ForwardOutput
from forerun.errors import CacheError
from forerun.models.layers import check_layers
from forerun.testing.toy import ToyCache, ToyModel


class LayeredToyCache(ToyCache):
    """Remembers token ids by slot, in each layer by itself."""

    def __init__(self, num_layers: int, rows: int, capacity: int) -> None:
        super().__init__(rows, capacity)
        self.layers: list[list[list[int]]] = [[[] for _ in range(rows)] for _ in range(num_layers)]

    def length(self, row: int) -> int:
        return min(len(layer[row]) for layer in self.layers)

    def view(self, rows: Several[int]) -> Any:
        return [[layer[row] for layer in self.layers] for row in rows]

    def keep(self, row: int, start: int, slots: Several[int]) -> None:
        for layer in self.layers:
            held = layer[row]
            held[start:] = [held[start + slot] for slot in slots if start + slot < len(held)]

    def trim(self, row: int, length: int, layers: range | None = None) -> None:
        for index in range(len(self.layers)) if layers is None else layers:
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

    def head(self, hidden: Tensor) -> Tensor:
        """The hidden states themselves."""
        return hidden

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        cache: Any,
        tree_mask: Tensor | None = None,
        hidden_layers: Several[int] = (),
        logits_for: LogitsFor = "all",
        layers: range | None = None,
        hidden_in: Tensor | None = None,
    ) -> ForwardOutput:
        """See `forerun.contracts.CausalLM.forward`.

        Raises:
            CacheError: where the layers to run hold different numbers of tokens, or fewer than stand
                before the positions to run.
            ConfigError: for layers that the model does not have or that are not run.
        """
        layers = check_layers(self, layers, hidden_layers, hidden_in)
        counts = [sum(place >= 0 for place in row) for row in positions.tolist()]
        for held, row in zip(cache, positions.tolist(), strict=True):
            _check([held[layer] for layer in layers], row[0])
        shape = (*token_ids.shape, self.vocab_size)
        state = torch.zeros(shape, dtype=self.dtype) if hidden_in is None else hidden_in
        states = {layers.start: state}
        for index in layers:
            added = torch.zeros(shape, dtype=self.dtype)
            for row, (held, count) in enumerate(zip(cache, counts, strict=True)):
                new = token_ids[row, :count].tolist()
                mask = None if tree_mask is None else tree_mask[row, :count]
                self._add(index, held[index], new, mask, added[row])
            states[index + 1] = states[index] + added
        logits: Tensor | None = None
        if logits_for != "none" and layers.stop == self.num_layers:
            logits = states[layers.stop]
            if logits_for == "last":
                last = (positions >= 0).sum(-1) - 1
                logits = logits[torch.arange(len(logits)), last][:, None]
        return ForwardOutput(logits, {layer: states[layer] for layer in hidden_layers})

    def _add(
        self, index: int, held: list[int], new: list[int], mask: Tensor | None, added: Tensor
    ) -> None:
        """Append tokens to a layer, and add what it has to say to the states [n, V]."""
        start = len(held)
        held.extend(new)
        for place in range(len(new)):
            seen = held[: start + place + 1]
            if mask is not None:
                # Columns cover the last m - n slots and the new tokens.
                first = start - (mask.shape[1] - len(added))
                chosen = mask[place].nonzero().flatten().tolist()
                seen = held[:first] + [held[first + column] for column in chosen]
            if index < len(seen):
                added[place] = self.tables[index, seen[-1 - index]]


def _check(layers: list[list[int]], place: int) -> None:
    lengths = {len(held) for held in layers}
    if len(lengths) > 1:
        raise CacheError(f"the layers hold different numbers of tokens: {sorted(lengths)}.")
    if place > min(lengths):
        raise CacheError(f"position {place} comes after {min(lengths)} cached tokens.")
