"""The preallocated cache: ragged rows, a length for each layer and row, rollback without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.errors import CacheError


class StaticCache:
    """Keys and values of `rows` rows in tensors that are allocated once.

    Args:
        num_layers: layers of the model.
        rows: rows of the batch.
        kv_heads: heads that keys and values have.
        capacity: slots a row, in tokens.
        head_dim: size of one head.
        dtype: of keys and values.
        device: where they lie.

    Attributes:
        keys, values: one tensor [rows, kv_heads, capacity, head_dim] a layer.
        positions: the position of each slot's token, int64 [rows, capacity]; a sliding window over
            the nodes of a tree needs it, as slots and positions differ there.
        lengths: filled slots, `lengths[layer][row]`.
    """

    def __init__(
        self,
        num_layers: int,
        rows: int,
        kv_heads: int,
        capacity: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        if rows < 1 or capacity < 1:
            raise CacheError(
                f"a cache of {rows} rows with {capacity} slots holds nothing; "
                "ask for at least 1 of each."
            )
        shape = (rows, kv_heads, capacity, head_dim)
        # Zeros, not empty memory: a masked slot weighs nothing, but nothing times NaN is NaN.
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(num_layers)]
        self.positions = torch.zeros((rows, capacity), dtype=torch.int64, device=device)
        self.lengths = [[0] * rows for _ in range(num_layers)]
        self._capacity = capacity

    @property
    def capacity(self) -> int:
        """Slots a row, in tokens."""
        return self._capacity

    @property
    def rows(self) -> int:
        """Rows of the batch."""
        return len(self.positions)

    @property
    def nbytes(self) -> int:
        """Bytes of all keys, values and positions."""
        return sum(t.nbytes for t in (*self.keys, *self.values, self.positions))

    def length(self, row: int) -> int:
        """Filled slots of `row` in its shortest layer."""
        return min(lengths[row] for lengths in self.lengths)

    def view(self, rows: Sequence[int]) -> CacheView:
        """The cache as a batch of these rows.

        Raises:
            CacheError: for no rows, or a row that does not exist or is named twice.
        """
        known = all(0 <= row < self.rows for row in rows)
        if not rows or not known or len(set(rows)) != len(rows):
            raise CacheError(
                f"rows {list(rows)} are no batch of this cache; "
                f"name rows 0 to {self.rows - 1}, once each."
            )
        return CacheView(self, tuple(rows))

    def keep(self, row: int, start: int, slots: Sequence[int]) -> None:
        """Of the slots from `start` on, keep only `start + slots[i]`, moved to `start + i`.

        A layer that does not hold all of them yet keeps those that it holds.

        Raises:
            CacheError: unless `slots` ascend and the longest layer holds them.
        """
        longest = max(lengths[row] for lengths in self.lengths)
        ascending = all(low < high for low, high in zip((-1, *slots), slots, strict=False))
        if not ascending or start < 0 or (slots and start + slots[-1] >= longest):
            raise CacheError(
                f"cannot keep slots {list(slots)} from {start} on in row {row}: "
                f"they must ascend from 0 and lie below {longest}, the slots filled."
            )
        still = next((i for i, slot in enumerate(slots) if slot != i), len(slots))
        moved = torch.tensor(slots[still:], dtype=torch.int64, device=self.positions.device) + start
        if len(moved):
            self._move(self.positions[row], start + still, moved)
        for layer, lengths in enumerate(self.lengths):
            if lengths[row] <= start:
                continue
            held = sum(start + slot < lengths[row] for slot in slots)
            if held > still:
                source = moved[: held - still]
                self._move(self.keys[layer][row], start + still, source)
                self._move(self.values[layer][row], start + still, source)
            lengths[row] = start + held

    @staticmethod
    def _move(slots: Tensor, start: int, source: Tensor) -> None:
        """Copy slots to `start` and after, in a row [heads, capacity, size] or [capacity]."""
        dim = max(slots.dim() - 2, 0)
        # index_select copies first, so overlapping source and destination are no matter.
        slots.narrow(dim, start, len(source)).copy_(slots.index_select(dim, source))

    def trim(self, row: int, length: int, layers: range | None = None) -> None:
        """Forget all slots of `row` from `length` on, in `layers` alone unless None.

        Raises:
            CacheError: for a negative length, or layers that the cache does not have.
        """
        if length < 0:
            raise CacheError(f"cannot trim row {row} to {length} slots; 0 empties it.")
        layers = range(len(self.lengths)) if layers is None else layers
        if layers and not 0 <= min(layers) <= max(layers) < len(self.lengths):
            raise CacheError(f"cannot trim {layers} of a cache of {len(self.lengths)} layers.")
        for layer in layers:
            self.lengths[layer][row] = min(self.lengths[layer][row], length)


@dataclass(frozen=True)
class CacheView:
    """Some rows of a cache, seen as a batch."""

    cache: StaticCache
    rows: tuple[int, ...]

    def append(self, positions: Tensor, layers: range) -> Appending:
        """Reserve slots for new tokens in `layers`, which then write keys and values one by one.

        Args:
            positions: [B, n]; -1 marks padding at the end of a row, which gets no slot.
            layers: the layers that will be written.

        Raises:
            CacheError: when a row would overflow, or its layers differ in length.
        """
        host = positions.tolist()
        if len(host) != len(self.rows):
            raise CacheError(
                f"{len(host)} rows of tokens were run on a view of {len(self.rows)} rows."
            )
        counts = tuple(sum(position >= 0 for position in row) for row in host)
        starts = tuple(self.cache.lengths[layers.start][row] for row in self.rows)
        for row, start, count in zip(self.rows, starts, counts, strict=True):
            self._check(row, start, count, layers)
        appending = Appending(self.cache, self.rows, starts, counts, positions, host)
        appending.write_positions()
        return appending

    def _check(self, row: int, start: int, count: int, layers: range) -> None:
        held = {self.cache.lengths[layer][row] for layer in layers}
        if len(held) > 1:
            raise CacheError(
                f"layers {layers.start} to {layers.stop - 1} hold {min(held)} to {max(held)} "
                f"tokens of row {row}; trim the row or run the layers that lag behind first."
            )
        if start + count > self.cache.capacity:
            raise CacheError(
                f"row {row} holds {start} tokens and cannot take {count} more: its capacity is "
                f"{self.cache.capacity}; make the cache larger or trim the row."
            )


class Appending:
    """The place of one forward pass in the cache.

    Attributes:
        starts: filled slots before it, by row of the batch.
        counts: new tokens that are no padding, by row of the batch.
        positions: of the new tokens, [B, n], -1 for padding.
        host_positions: the same as lists.
        even: whether all rows start at the same slot and none has padding.
        total: slots that the longest row fills afterwards, at least 1.
    """

    def __init__(
        self,
        cache: StaticCache,
        rows: tuple[int, ...],
        starts: tuple[int, ...],
        counts: tuple[int, ...],
        positions: Tensor,
        host_positions: list[list[int]],
    ) -> None:
        self._cache, self._rows = cache, rows
        self.starts, self.counts = starts, counts
        self.positions, self.host_positions = positions, host_positions
        self.even = len(set(starts)) == 1 and set(counts) == {positions.shape[1]}
        self.total = max(1, *(s + c for s, c in zip(starts, counts, strict=True)))
        adjacent = rows == tuple(range(rows[0], rows[-1] + 1))
        device = positions.device
        # A range of rows is read and written in place; other rows have to be gathered.
        self._index: slice | Tensor = slice(rows[0], rows[-1] + 1)
        if not adjacent:
            self._index = torch.tensor(rows, device=device)
        self._scatter = None if adjacent and self.even else self._targets(device)

    def _targets(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """For each token that is no padding: its flat index in the batch, its row and its slot."""
        width = self.positions.shape[1]
        flat: list[int] = []
        rows: list[int] = []
        slots: list[int] = []
        for b, (row, start, count) in enumerate(
            zip(self._rows, self.starts, self.counts, strict=True)
        ):
            flat.extend(range(b * width, b * width + count))
            rows.extend([row] * count)
            slots.extend(range(start, start + count))
        return (
            torch.tensor(flat, dtype=torch.int64, device=device),
            torch.tensor(rows, dtype=torch.int64, device=device),
            torch.tensor(slots, dtype=torch.int64, device=device),
        )

    def write_positions(self) -> None:
        """Note the positions of the new slots."""
        if self._scatter is None:
            start, width = self.starts[0], self.positions.shape[1]
            self._cache.positions[self._index, start : start + width] = self.positions
        else:
            flat, rows, slots = self._scatter
            self._cache.positions[rows, slots] = self.positions.flatten()[flat]

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store the new keys and values [B, kv_heads, n, head_dim] of one layer."""
        for store, new in ((self._cache.keys[layer], keys), (self._cache.values[layer], values)):
            if self._scatter is None:
                start = self.starts[0]
                store[self._index, :, start : start + new.shape[2]] = new
            else:
                flat, rows, slots = self._scatter
                store[rows, :, slots] = new.transpose(1, 2).flatten(0, 1)[flat]
        for row, start, count in zip(self._rows, self.starts, self.counts, strict=True):
            self._cache.lengths[layer][row] = start + count

    def read(self, layer: int, first: int = 0) -> tuple[Tensor, Tensor]:
        """Keys and values [B, kv_heads, total - first, head_dim] of the slots from `first` on."""
        window = slice(first, self.total)
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        return keys[self._index, :, window], values[self._index, :, window]

    def slot_positions(self, first: int = 0) -> Tensor:
        """Positions [B, total - first] of the slots from `first` on."""
        return self._cache.positions[self._index, first : self.total]
