"""Cache for models of transformers: each row has its own cache of transformers, cropped separately."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from forerun.errors import CacheError
from forerun.kv_cache import check_length, check_path, check_row


class HFCache:
    """Rows of `DynamicCache`; implements `forerun.contracts.Cache`.

    Every layer keeps all its keys and values, even with a sliding window: a window that has dropped
    a slot cannot be rolled back.

    Args:
        rows: number of rows.
        capacity: tokens per row.
    """

    def __init__(self, rows: int, capacity: int) -> None:
        if rows < 1 or capacity < 1:
            raise CacheError.no_room(rows, capacity)
        from transformers import DynamicCache

        # Without a config every layer keeps all tokens, whatever the model's windows.
        self.caches: list[Any] = [DynamicCache() for _ in range(rows)]
        self.positions: list[list[int]] = [[] for _ in range(rows)]
        self.rows, self.capacity = rows, capacity

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values held now."""
        layers = [layer for cache in self.caches for layer in cache.layers if layer.is_initialized]
        return sum(int(layer.keys.nbytes + layer.values.nbytes) for layer in layers)

    def length(self, row: int, layer: int | None = None) -> int:
        """Number of tokens of `row`; all layers hold the same tokens.

        Raises:
            CacheError: for a row that does not exist.
        """
        check_row(row, self.rows)
        return len(self.positions[row])

    def keep(self, row: int, length: int, path: Sequence[int]) -> None:
        """Keep the first `length` tokens of `row` and, of those after them, the ones at `path`, in order.

        Raises:
            CacheError: for a row that does not exist, and unless `path` ascends and the row holds
                it.
        """
        check_path(row, length, path, self.length(row))
        self._select(row, [*range(length), *(length + token for token in path)])

    def trim(self, row: int, length: int, layers: range | None = None) -> None:
        """Forget the tokens of `row` after the first `length`.

        Raises:
            CacheError: for a row that does not exist, a negative length, or if `layers` are given:
                all layers hold the same tokens.
        """
        if layers is not None:
            raise CacheError(
                f"a cache of transformers is trimmed in all layers, not just in {layers}; give no layers."
            )
        check_length(row, length)
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
