"""A cache for models of transformers: one of its own caches a row, each cropped by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from forerun.errors import CacheError


class HFCache:
    """Rows of `DynamicCache`; implements `forerun.contracts.Cache`.

    Every layer keeps all its keys and values, those of sliding windows too: a window that has
    dropped a slot cannot be rolled back.

    Args:
        rows: rows of the batch.
        capacity: slots a row, in tokens.
    """

    def __init__(self, rows: int, capacity: int) -> None:
        if rows < 1 or capacity < 1:
            raise CacheError(
                f"a cache of {rows} rows with {capacity} slots holds nothing; "
                "ask for at least 1 of each."
            )
        from transformers import DynamicCache

        # Without a config every layer is a full one, whatever the model's windows.
        self.caches: list[Any] = [DynamicCache() for _ in range(rows)]
        self.positions: list[list[int]] = [[] for _ in range(rows)]
        self._capacity = capacity

    @property
    def capacity(self) -> int:
        """Slots a row, in tokens."""
        return self._capacity

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values held now."""
        layers = [layer for cache in self.caches for layer in cache.layers if layer.is_initialized]
        return sum(int(layer.keys.nbytes + layer.values.nbytes) for layer in layers)

    def length(self, row: int) -> int:
        """Filled slots of `row`."""
        return len(self.positions[row])

    def view(self, rows: Sequence[int]) -> HFCacheView:
        """The cache as a batch of these rows.

        Raises:
            CacheError: for no rows, or a row that does not exist or is named twice.
        """
        known = range(len(self.caches))
        if not rows or not set(rows) <= set(known) or len(set(rows)) != len(rows):
            raise CacheError(
                f"rows {list(rows)} are no batch of this cache; "
                f"name rows 0 to {known.stop - 1}, once each."
            )
        return HFCacheView(self, tuple(rows))

    def reserve(self, row: int, positions: Sequence[int]) -> None:
        """Note the positions of tokens that are about to be run.

        Raises:
            CacheError: when the row would overflow.
        """
        held = self.length(row)
        if held + len(positions) > self.capacity:
            raise CacheError(
                f"row {row} holds {held} tokens and cannot take {len(positions)} more: its "
                f"capacity is {self.capacity}; make the cache larger or trim the row."
            )
        self.positions[row].extend(positions)

    def keep(self, row: int, start: int, slots: Sequence[int]) -> None:
        """Of the slots from `start` on, keep only `start + slots[i]`, moved to `start + i`.

        Raises:
            CacheError: unless `slots` ascend and the row holds them.
        """
        held = self.length(row)
        ascending = all(low < high for low, high in zip((-1, *slots), slots, strict=False))
        if not ascending or not 0 <= start <= held or (slots and start + slots[-1] >= held):
            raise CacheError(
                f"cannot keep slots {list(slots)} from {start} on in row {row}: "
                f"they must ascend from 0 and lie below {held}, the slots filled."
            )
        self._select(row, [*range(start), *(start + slot for slot in slots)])

    def trim(self, row: int, length: int, layers: range | None = None) -> None:
        """Forget all slots of `row` from `length` on, in `layers` alone unless None.

        Raises:
            CacheError: for a negative length, or for layers: all of them have one length.
        """
        if layers is not None:
            raise CacheError(
                f"a cache of transformers is trimmed as a whole, not in {layers} alone; "
                "give no layers."
            )
        if length < 0:
            raise CacheError(f"cannot trim row {row} to {length} slots; 0 empties it.")
        self._select(row, range(min(length, self.length(row))))

    def _select(self, row: int, slots: Sequence[int]) -> None:
        self.positions[row] = [self.positions[row][slot] for slot in slots]
        prefix = len(slots) == 0 or slots[-1] == len(slots) - 1
        for layer in self.caches[row].layers:
            if not layer.is_initialized:
                continue
            if prefix:
                layer.keys = layer.keys[..., : len(slots), :]
                layer.values = layer.values[..., : len(slots), :]
            else:
                index = torch.tensor(slots, device=layer.keys.device)
                layer.keys = layer.keys.index_select(-2, index)
                layer.values = layer.values.index_select(-2, index)


@dataclass(frozen=True)
class HFCacheView:
    """Some rows of an `HFCache`, seen as a batch."""

    cache: HFCache
    rows: tuple[int, ...]
