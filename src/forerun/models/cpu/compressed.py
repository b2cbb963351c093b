"""The cache of the kernels with eviction."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from forerun.compression import Compression
from forerun.compression.base import Rotate
from forerun.core import Batch
from forerun.kv_cache import Evicting, QueryLog
from forerun.models.cpu.cache import CpuCache
from forerun.models.cpu.errors import TypedErrors

_ERRORS = TypedErrors("the cache")


class CompressedCpuCache(Evicting, CpuCache):
    """Keys and values of a batch of rows on the kernels, with eviction.

    Memory behind the tokens that are left of a row is given back to the system.

    Args:
        native: the kernels' object.
        pool: the threads that move the tokens that stay.
        compression: decides which tokens stay.
        rotate: the model's rotary embedding.
        heads: number of query heads.
    """

    def __init__(
        self, native: Any, pool: Any, compression: Compression, rotate: Rotate, heads: int
    ) -> None:
        CpuCache.__init__(self, native)
        self._pool = pool
        layers, kv_heads, size = (
            int(number) for number in (native.layers, native.kv_heads, native.head_dim)
        )
        self._heads = heads

        def new_log() -> QueryLog:
            return QueryLog((layers, heads, size), torch.float32, torch.device("cpu"))

        own = (layers, kv_heads, size)
        Evicting.__init__(self, self.rows, own, compression, rotate, new_log)

    def copy(self) -> Self:
        """A copy of the cache; see `forerun.contracts.Evicts`."""
        memo = {id(part): part for part in (self._rotate, self._pool)}
        memo |= {id(self.native): self.native.copy(), id(self.draft_heads): {}}
        return copy.deepcopy(self, memo)

    def room_for_queries(self, batch: Batch, layers: range) -> Tensor | None:
        """Memory for the queries of a forward; see `CpuCache`."""
        if not any(self.logs(row) for row in batch.rows):
            return None
        return torch.empty(len(layers), sum(batch.counts), self._heads * self._head_dim)

    def note_queries(self, batch: Batch, layers: range, queries: Tensor) -> None:
        """Log the queries of a forward that has run; see `CpuCache`."""
        by_head = queries.view(len(layers), -1, self._heads, self._head_dim).transpose(1, 2)
        first = 0
        for row, count in zip(batch.rows, batch.counts, strict=True):
            if count and self.logs(row):
                start = self.length(row, layers.start) - count
                self.log(row, layers, start, by_head[:, :, first : first + count])
            first += count

    def num_slots(self, row: int, layer: int | None = None) -> int:
        """Number of tokens that a row holds in a layer; in its shortest layer if None."""
        return CpuCache.length(self, row, layer)

    def _keep_slots(self, row: int, start: int, path: Sequence[int]) -> None:
        CpuCache.keep(self, row, start, path)

    def _trim_slots(self, row: int, length: int, layers: range | None) -> None:
        CpuCache.trim(self, row, length, layers)

    def _evict_slots(self, row: int, stay: Tensor) -> None:
        with _ERRORS:
            self.native.evict(self._pool, row, stay.contiguous().numpy())

    def _numbers(self, layer: int, row: int, count: int, values: bool) -> Tensor:
        numbers = torch.empty(self._kv_heads, count, self._head_dim)
        with _ERRORS:
            self.native.read(self._pool, layer, row, values, numbers.numpy())
        return numbers
