"""Queries of a row's newest tokens, for methods that score tokens by attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from forerun.compression.base import Queries
from forerun.interrupts import held_back

# Number of tokens by which its memory grows.
STEP = 256


class QueryLog:
    """Queries of the newest tokens of a row, before their rotation; indexed by tokens of the text.

    Args:
        shape: layers, query heads, size of one head.
        dtype, device: of queries.

    Attributes:
        first: number of tokens before the first logged one.
        ends: number of tokens up to and including the last logged one, by layer.
    """

    def __init__(
        self, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
    ) -> None:
        layers, heads, size = shape
        self.ends = [0] * layers
        self.first = 0
        self._vectors = torch.empty(layers, heads, 0, size, dtype=dtype, device=device)

    def write(self, layers: range, start: int, queries: Tensor) -> None:
        """Log queries [layers, heads, n, head_dim] of the tokens from `start` on.

        They replace logged queries of these and later tokens.
        """
        assert start <= min(self.ends[layers.start : layers.stop]), "a gap"
        end = start + queries.shape[2]
        self._make_room(end)
        part = slice(start - self.first, end - self.first)
        self._vectors[layers.start : layers.stop, :, part] = queries
        for layer in layers:
            self.ends[layer] = end

    def cut(self, end: int, layers: range | None = None) -> None:
        """Forget the queries after the first `end` tokens."""
        for layer in range(len(self.ends)) if layers is None else layers:
            self.ends[layer] = min(self.ends[layer], end)

    def keep(self, length: int, path: Sequence[int]) -> None:
        """Keep the queries of the first `length` tokens and, after them, those at `path`, which ascends."""
        staying = [token for token in path if length + token < max(self.ends)]
        if staying != list(range(len(staying))):
            start = length - self.first
            index = torch.tensor(staying, device=self._vectors.device) + start
            self._vectors[:, :, start : start + len(staying)] = self._vectors[:, :, index]
        for layer, end in enumerate(self.ends):
            if end > length:
                self.ends[layer] = length + sum(length + token < end for token in staying)

    def forget(self, before: int) -> None:
        """Forget the queries of the first `before` tokens."""
        drop = before - self.first
        if drop > 0:
            left = max(max(self.ends) - before, 0)
            vectors = self._vectors[:, :, drop : drop + left].clone()
            with held_back():
                self._vectors, self.first = vectors, before

    def between(self, layer: int, start: int, end: int, dropped: int) -> Queries:
        """Queries of the tokens from `start` to `end`, in a row that has lost `dropped` tokens."""
        positions = torch.arange(start, end, device=self._vectors.device)
        part = slice(start - self.first, end - self.first)
        return Queries(self._vectors[layer, :, part], positions, positions - dropped)

    def _make_room(self, end: int) -> None:
        size, wanted = self._vectors.shape[2], end - self.first
        if wanted > size:
            shape = list(self._vectors.shape)
            shape[2] = -(-wanted // STEP) * STEP
            made = self._vectors.new_empty(shape)
            made[:, :, :size] = self._vectors
            self._vectors = made
