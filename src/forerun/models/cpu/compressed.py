"""The cache of the kernels, once more where it evicts."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from forerun.compression import Compression
from forerun.compression.base import Rotate
from forerun.core import Batch, View
from forerun.kv_cache import Evicting, QueryLog
from forerun.models.cpu.cache import CpuCache
from forerun.models.cpu.errors import TypedErrors

_ERRORS = TypedErrors("the cache")


class CompressedCpuCache(Evicting, CpuCache):
    """Keys and values of a batch of rows on the kernels, of which some are evicted.

    Memory behind what is left of a row is given back to the system.

    Args:
        native: of the kernels.
        pool: the threads that move what stays.
        compression: which tokens stay.
        rotate: the model's rotary embedding.
        heads: that queries have.
    """

    def __init__(
        self, native: Any, pool: Any, compression: Compression, rotate: Rotate, heads: int
    ) -> None:
        CpuCache.__init__(self, native)
        self._pool = pool
        shape = (int(native.layers), heads, int(native.head_dim))
        self._sizes = (int(native.kv_heads), heads, int(native.head_dim))

        def new_log() -> QueryLog:
            return QueryLog(shape, torch.float32, torch.device("cpu"))

        Evicting.__init__(self, self.rows, shape[0], compression, rotate, new_log)

    def copy(self) -> Self:
        """See `forerun.contracts.Evicts`."""
        shared = {id(part): part for part in (self._rotate, self._pool)}
        return copy.deepcopy(self, {id(self.native): self.native.copy(), **shared})

    def check_view(self, view: View | None) -> None:
        """Refuse to read a part of the text alone.

        Raises:
            CacheError: for a view.
        """
        Evicting.check_view(self, view)

    def room_for_queries(self, batch: Batch, layers: range) -> Tensor | None:
        """See `CpuCache`."""
        if not any(self.logs(row) for row in batch.rows):
            return None
        _, heads, size = self._sizes
        return torch.empty(len(layers), sum(batch.counts), heads * size)

    def note_queries(self, batch: Batch, layers: range, queries: Tensor) -> None:
        """See `CpuCache`."""
        _, heads, size = self._sizes
        first = 0
        for row, count in zip(batch.rows, batch.counts, strict=True):
            new = queries[:, first : first + count].view(len(layers), count, heads, size)
            first += count
            if count and self.logs(row):
                self.log(row, layers, self.length(row, layers.start) - count, new.transpose(1, 2))

    def slots(self, row: int, layer: int | None = None) -> int:
        """Tokens that a row holds in a layer; in its shortest layer if None."""
        return CpuCache.length(self, row, layer)

    def _keep_slots(self, row: int, start: int, path: Sequence[int]) -> None:
        CpuCache.keep(self, row, start, path)

    def _trim_slots(self, row: int, length: int, layers: range | None) -> None:
        CpuCache.trim(self, row, length, layers)

    def _evict_slots(self, row: int, stay: Tensor) -> None:
        with _ERRORS:
            self.native.evict(self._pool, row, stay.contiguous().numpy())

    def _numbers(self, layer: int, row: int, count: int, values: bool) -> Tensor:
        heads, _, size = self._sizes
        numbers = torch.empty(heads, count, size)
        with _ERRORS:
            self.native.read(self._pool, layer, row, values, numbers.numpy())
        return numbers
