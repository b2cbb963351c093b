"""A cache that evicts: it speaks in tokens as every other, and holds fewer of them in its slots.

All layers and heads of a row hold as many tokens, but not the same ones. Their keys keep the rotations of the
positions that they had. Tokens are evicted where a request goes on from committed text alone: after its
prompt, then every so many tokens (`until_eviction`), wherever rounds begin and whatever was drafted in them.
So a rejected token is neither counted nor in anyone's place, and drafts change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from forerun.compression import Compression
from forerun.compression.base import Held, Queries, Rotate
from forerun.core import MOST_NODES, Batch
from forerun.errors import CacheError
from forerun.interrupts import held_back
from forerun.kv_cache.codes import Codes, parts
from forerun.kv_cache.fit import held_before
from forerun.kv_cache.static import Appending, StaticCache

# Slots by which the tensors grow, and queries that are counted at once.
STEP = 256


@dataclass(frozen=True)
class Log:
    """The queries of the newest tokens of one layer of one row, and what was made of earlier ones.

    Args:
        queries: [heads, n, head_dim], before their rotation.
        positions: int64 [n].
        end: tokens up to and with the last of them.
        counted: tokens that the method has counted.
        state: what it has made of them.
    """

    queries: Tensor
    positions: Tensor
    end: int = 0
    counted: int = 0
    state: Tensor | None = None

    def cut(self, end: int) -> Log:
        """Without those after the first `end` tokens."""
        if self.end <= end:
            return self
        left = max(len(self.positions) - (self.end - end), 0)
        return replace(
            self, queries=self.queries[:, :left], positions=self.positions[:left], end=end
        )

    def append(self, start: int, queries: Tensor, positions: Tensor) -> Log:
        """With those of the tokens from `start` on."""
        held = self.cut(start)
        return replace(
            held,
            queries=torch.cat((held.queries, queries), 1),
            positions=torch.cat((held.positions, positions)),
            end=start + len(positions),
        )

    def keep(self, length: int, path: Sequence[int]) -> Log:
        """Of the tokens after the first `length`, those at `path`."""
        if self.end <= length:
            return self
        first = self.end - len(self.positions)
        kept = [length + token for token in path if length + token < self.end]
        held = torch.tensor([*range(first, length), *kept], dtype=torch.int64)
        index = held.to(self.positions.device) - first
        return replace(
            self,
            queries=self.queries[:, index],
            positions=self.positions[index],
            end=length + len(kept),
        )

    def newest(self, count: int) -> Log:
        """With the newest `count` of its queries alone."""
        first = max(len(self.positions) - count, 0)
        return replace(self, queries=self.queries[:, first:], positions=self.positions[first:])

    def between(self, start: int, end: int, dropped: int) -> Queries:
        """The queries of the tokens from `start` to `end`, of a row that has lost so many."""
        first = self.end - len(self.positions)
        part = slice(start - first, end - first)
        slots = torch.arange(start - dropped, end - dropped, device=self.positions.device)
        return Queries(self.queries[:, part], self.positions[part], slots)


class CompressedCache(StaticCache):
    """Keys and values of `rows` rows, of which some are evicted.

    Its tensors grow as rows do and shrink when tokens are evicted.

    Args:
        num_layers: layers of the model.
        shape: rows, heads that keys and values have, tokens a row, size of one head.
        dtype, device: of keys and values.
        compression: which tokens stay.
        rotate: the model's rotary embedding.
        heads: that queries have.
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
        super().__init__(num_layers, first, dtype, device, kv_dtype)
        self.capacity = capacity
        self.compression, self.method, self._rotate = compression, compression.make(), rotate
        self.dropped = [0] * rows
        """Tokens that each row has lost, the same in all layers."""
        self._due: list[int | None] = [None] * rows
        """Tokens at which each row evicts next; None after its prompt."""
        empty = Log(
            torch.empty(heads, 0, size, dtype=dtype, device=device),
            torch.empty(0, dtype=torch.int64, device=device),
        )
        self._empty = empty
        self._logs = [[empty] * rows for _ in range(num_layers)]

    @property
    def logs_queries(self) -> bool:
        """Whether the method reads queries."""
        return self.method.counts or self.method.observed > 0

    def length(self, row: int, layer: int | None = None) -> int:
        return super().length(row, layer) + self.dropped[row]

    def append(self, batch: Batch, positions: Tensor, layers: range) -> Appending:
        """As of a `StaticCache`.

        Raises:
            CacheError: besides, for a batch that reads a part of the text: its slots differ by head.
        """
        if batch.view is not None:
            raise CacheError(
                "a cache that evicts holds other tokens in each head, so that no part of the text can be "
                "read alone; leave kv_method out, or draft with another method than self_sparse."
            )
        starts = held_before(batch, self, layers)
        slots = tuple(
            start - self.dropped[row] for start, row in zip(starts, batch.rows, strict=True)
        )
        self._fit(max(slot + count for slot, count in zip(slots, batch.counts, strict=True)))
        appending = _Logging(self, batch, slots, positions)
        appending.write_positions()
        return appending

    def keep(self, row: int, length: int, path: Sequence[int]) -> None:
        super().keep(row, length - self.dropped[row], path)
        for logs in self._logs:
            logs[row] = logs[row].keep(length, path)

    def trim(self, row: int, length: int, layers: range | None = None) -> None:
        """Forget the tokens of `row` after the first `length`.

        Raises:
            CacheError: besides, for some of the tokens among which others were evicted: all or none.
        """
        whole = length == 0 and layers is None
        due = self._due[row]
        if not whole and due is not None and length < due - self.compression.kv_interval:
            raise CacheError(
                f"row {row} has evicted tokens at {due - self.compression.kv_interval} tokens and cannot be "
                f"trimmed to {length}; trim it to 0 and run the text again."
            )
        super().trim(row, max(length - self.dropped[row], 0), layers)
        for logs in self._logs if layers is None else self._logs[layers.start : layers.stop]:
            logs[row] = self._empty if whole else logs[row].cut(length)
        if whole:
            self.dropped[row], self._due[row] = 0, None

    def log(self, layer: int, row: int, start: int, queries: Tensor, positions: Tensor) -> None:
        """Note queries [heads, n, head_dim], before their rotation, of the tokens from `start` on."""
        self._logs[layer][row] = self._logs[layer][row].append(start, queries, positions)

    def until_eviction(self, row: int) -> int | None:
        """See `forerun.contracts.Evicts`."""
        due = self._due[row]
        return None if due is None or self.compression.kv_budget is None else due - self.length(row)

    def commit(self, row: int) -> None:
        """See `forerun.contracts.Evicts`."""
        length = self.length(row)
        for layer in range(len(self._logs)):
            self._count(layer, row, length)

    def evict(self, row: int) -> None:
        """See `forerun.contracts.Evicts`."""
        length, due = self.length(row), self._due[row]
        if due is not None and length != due:
            return
        held = length - self.dropped[row]
        stay = self.compression.kept(held, due is None)
        if stay < held:
            self.commit(row)
            chosen = [self._chosen(layer, row, stay) for layer in range(len(self._logs))]
        else:
            chosen = []
        with held_back():
            for layer, slots in enumerate(chosen):
                self._compact(layer, row, slots)
            self.dropped[row] += held - stay
            if due is None or self.compression.kv_budget is not None:
                self._due[row] = length + self.compression.kv_interval
        self._fit(0)

    def _count(self, layer: int, row: int, length: int) -> None:
        """Have the method count the queries of committed tokens, and forget those that it has no use for."""
        log, method = self._logs[layer][row], self.method
        while method.counts and log.counted < length:
            end = min(log.counted + STEP, length)
            queries = log.between(log.counted, end, self.dropped[row])
            state = method.count(self._held(layer, row, end), queries, log.state)
            log = replace(log, counted=end, state=state)
        uncounted = log.end - length
        self._logs[layer][row] = log.newest(method.observed + uncounted)

    def _held(self, layer: int, row: int, length: int) -> Held:
        """What a layer holds of the first `length` tokens."""
        end, log = length - self.dropped[row], self._logs[layer][row]
        observed = min(self.method.observed, len(log.positions))
        index = (row, slice(None), slice(end))
        return Held(
            self.keys[layer][index].to(self.dtype),
            self.values[layer][index].to(self.dtype),
            log.between(length - observed, length, self.dropped[row]),
            length,
            self._rotate,
        )

    def _chosen(self, layer: int, row: int, count: int) -> Tensor:
        """The slots whose tokens stay, int64 [kv_heads, count], rising."""
        held = self._held(layer, row, self.length(row))
        scores = self.method.score(held, self._logs[layer][row].state).clone()
        scores[:, : self.compression.kv_sinks] = torch.inf
        scores[:, scores.shape[1] - self.compression.kv_recent :] = torch.inf
        # Stable, so that of equals the newest stay.
        order = scores.argsort(dim=-1, stable=True)
        return order[:, order.shape[1] - count :].sort(dim=-1).values

    def _compact(self, layer: int, row: int, slots: Tensor) -> None:
        for part in (*parts(self.keys[layer]), *parts(self.values[layer])):
            index = slots[:, :, None].expand(-1, -1, part.shape[-1])
            part[row, :, : slots.shape[1]] = part[row].gather(1, index)
        self.lengths[layer][row] = slots.shape[1]
        log = self._logs[layer][row]
        self._logs[layer][row] = replace(log, state=self.method.keep(log.state, slots))

    def _fit(self, slots: int) -> None:
        """Have room for so many slots a row and for what the rows hold, and not much more."""
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
    """Where new tokens lie in a cache that reads their queries."""

    _cache: CompressedCache

    def observe(self, layer: int, queries: Tensor) -> None:
        if not self._cache.logs_queries:
            return
        counts = zip(self.batch.rows, self.starts, self.batch.counts, strict=True)
        for index, (row, start, count) in enumerate(counts):
            self._cache.log(
                layer,
                row,
                start + self._cache.dropped[row],
                queries[index, :, :count],
                self.positions[index, :count],
            )
