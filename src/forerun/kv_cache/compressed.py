"""The preallocated cache with eviction."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from forerun.compression import Compression
from forerun.compression.methods import Rotate
from forerun.core import MOST_NODES, Batch
from forerun.kv_cache.codes import Codes, parts
from forerun.kv_cache.evicting import STEP, Evicting, QueryLog
from forerun.kv_cache.fit import held_before
from forerun.kv_cache.static import Appending, StaticCache


class CompressedCache(Evicting, StaticCache):
    """Keys and values of `rows` rows, with eviction.

    Its tensors grow with the rows and shrink when tokens are evicted.

    Args:
        num_layers: layers of the model.
        shape: rows, key and value heads, tokens per row, size of one head.
        dtype, device: of keys and values.
        compression: decides which tokens stay.
        rotate: the model's rotary embedding.
        heads: number of query heads.
        kv_dtype: as of a `StaticCache`.
    """

    def __init__(
        self,
        num_layers: int,
        shape: tuple[int, int, int, int],
        dtype: torch.dtype,
        device: torch.device,
        *,
        compression: Compression,
        rotate: Rotate,
        heads: int,
        kv_dtype: str = "auto",
    ) -> None:
        rows, kv_heads, capacity, size = shape
        first = (rows, kv_heads, min(capacity, STEP), size)
        StaticCache.__init__(self, num_layers, first, dtype, device, kv_dtype)
        self.capacity = capacity

        def new_log() -> QueryLog:
            return QueryLog((num_layers, heads, size), dtype, device)

        own = (num_layers, kv_heads, size)
        Evicting.__init__(self, rows, own, compression, rotate, new_log)

    def append(self, batch: Batch, positions: Tensor, layers: range) -> Appending:
        """Make room for new tokens, as in a `StaticCache`.

        Raises:
            CacheError: also for a batch that reads only a part of the text, because slots differ by
                head.
        """
        self.check_view(batch.view)
        starts = held_before(batch, self, layers)
        slots = tuple(
            start - self.dropped[row] for start, row in zip(starts, batch.rows, strict=True)
        )
        self._fit(max(slot + count for slot, count in zip(slots, batch.counts, strict=True)))
        appending = _Logging(self, batch, slots, positions)
        appending.write_positions()
        return appending

    def num_slots(self, row: int, layer: int | None = None) -> int:
        """Number of tokens that a row holds in a layer; in its shortest layer if None."""
        return StaticCache.length(self, row, layer)

    def _keep_slots(self, row: int, start: int, path: Sequence[int]) -> None:
        StaticCache.keep(self, row, start, path)

    def _trim_slots(self, row: int, length: int, layers: range | None) -> None:
        StaticCache.trim(self, row, length, layers)

    def _evict_slots(self, row: int, stay: Tensor) -> None:
        for layer, slots in enumerate(stay):
            for part in (*parts(self.keys[layer]), *parts(self.values[layer])):
                index = slots[:, :, None].expand(-1, -1, part.shape[-1])
                part[row, :, : slots.shape[1]] = part[row].gather(1, index)
            self.lengths[layer][row] = slots.shape[1]
        self._fit(0)

    def _numbers(self, layer: int, row: int, count: int, values: bool) -> Tensor:
        store = (self.values if values else self.keys)[layer]
        return store[row, :, :count].to(self.dtype)

    def _fit(self, slots: int) -> None:
        """Resize the tensors to the given slots per row and the tokens held, and not much more."""
        size, held = self.positions.shape[1], max(max(lengths) for lengths in self.lengths)
        slots = max(slots, held)
        wanted = -(-(slots + MOST_NODES) // STEP) * STEP
        if slots <= size <= wanted + STEP:
            return

        def resized(tensor: Tensor, dim: int) -> Tensor:
            shape = list(tensor.shape)
            shape[dim] = wanted
            made = tensor.new_zeros(shape)
            made.narrow(dim, 0, held).copy_(tensor.narrow(dim, 0, held))
            return made

        for stores in (self.keys, self.values):
            for layer, store in enumerate(stores):
                if isinstance(store, Codes):
                    store.codes, store.scales = resized(store.codes, 2), resized(store.scales, 2)
                else:
                    stores[layer] = resized(store, 2)
        self.positions = resized(self.positions, 1)


class _Logging(Appending):
    """Slots of new tokens in a cache that reads their queries."""

    _cache: CompressedCache

    def observe(self, layer: int, queries: Tensor) -> None:
        counts = zip(self.batch.rows, self.starts, self.batch.counts, strict=True)
        for index, (row, start, count) in enumerate(counts):
            if self._cache.logs(row):
                new = queries[index : index + 1, :, :count]
                start += self._cache.dropped[row]
                self._cache.log(row, range(layer, layer + 1), start, new)
