"""The preallocated cache: ragged rows, one length per layer and row, rollback without a copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from forerun.core import BLOCK_SIZE, Batch, View
from forerun.costs.precision import CODED
from forerun.errors import CacheError
from forerun.kv_cache.codes import Codes, Store, parts, turn
from forerun.kv_cache.fit import (
    check_length,
    check_path,
    check_row,
    check_view,
    held_before,
    layers_to_trim,
)

_STORED = {"fp32": torch.float32, "bf16": torch.bfloat16}


class StaticCache:
    """Keys and values of `rows` rows in tensors that are allocated once.

    Args:
        num_layers: layers of the model.
        shape: rows, key and value heads, tokens per row, size of one head.
        dtype: type of keys and values as they are read.
        device: device of the tensors.
        kv_dtype: precision in which they are stored: `fp32`, `bf16`, `int8`, `int4`, or `auto` for
            `dtype`.

    Attributes:
        keys, values: one tensor [rows, kv_heads, capacity, head_dim] per layer, or its `Codes`; a
            row's i-th token is in slot i.
        positions: position of each slot's token, int64 [rows, capacity]; needed by a sliding window
            over the nodes of a tree, whose slots and positions differ.
        lengths: number of tokens held, `lengths[layer][row]`.
        block_means: mean keys of blocks, for the layers in which a view selected blocks.
        rows, capacity: number of rows, and of tokens per row.
        kv_dtype: as given.
        dtype: as given.
    """

    def __init__(
        self,
        num_layers: int,
        shape: tuple[int, int, int, int],
        dtype: torch.dtype,
        device: torch.device,
        kv_dtype: str = "auto",
    ) -> None:
        self.rows, self.capacity = rows, capacity = shape[0], shape[2]
        self.dtype, self.kv_dtype = dtype, kv_dtype
        if rows < 1 or capacity < 1:
            raise CacheError.no_room(rows, capacity)

        def store(turned: bool) -> Store:
            if kv_dtype in CODED:
                return Codes(shape, kv_dtype, dtype, device, turned)
            # Zeros and not empty memory: a masked slot has weight 0, but 0 times NaN is NaN.
            return torch.zeros(shape, dtype=_STORED.get(kv_dtype, dtype), device=device)

        self.keys = [store(turned=True) for _ in range(num_layers)]
        self.values = [store(turned=False) for _ in range(num_layers)]
        self.positions = torch.zeros((rows, capacity), dtype=torch.int64, device=device)
        self.lengths = [[0] * rows for _ in range(num_layers)]
        self.block_means: dict[int, BlockMeans] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all keys, values, positions and means of blocks."""
        means = [layer.means for layer in self.block_means.values()]
        return sum(t.nbytes for t in (*self.keys, *self.values, self.positions, *means))

    def length(self, row: int, layer: int | None = None) -> int:
        """Number of tokens of `row` in `layer`; in its shortest layer if None.

        Raises:
            CacheError: for a row that does not exist.
        """
        check_row(row, self.rows)
        if layer is not None:
            return self.lengths[layer][row]
        return min(lengths[row] for lengths in self.lengths)

    def check_view(self, view: View | None) -> None:
        """Refuse a view that the cache cannot be read through.

        Raises:
            CacheError: for a coarse view of a cache without int8 codes.
        """
        check_view(view, self.kv_dtype)

    def append(self, batch: Batch, positions: Tensor, layers: range) -> Appending:
        """Make room for new tokens in `layers`, whose keys and values are written layer by layer.

        Args:
            batch: the tokens.
            positions: positions of the batch on the cache's device, [B, n], -1 for padding.
            layers: the layers that will be written.

        Raises:
            CacheError: for a row that does not exist, is full, whose layers hold different numbers
                of tokens, or whose positions leave some out, and for a coarse view of a cache
                without int8.
        """
        self.check_view(batch.view)
        appending = Appending(self, batch, held_before(batch, self, layers), positions)
        appending.write_positions()
        return appending

    def keep(self, row: int, length: int, path: Sequence[int]) -> None:
        """Keep the first `length` tokens of `row` and, of those after them, the ones at `path`, in order.

        A layer that does not hold all of them yet keeps those that it holds.

        Raises:
            CacheError: for a row that does not exist, and unless `path` ascends and the longest
                layer holds it.
        """
        check_row(row, self.rows)
        check_path(row, length, path, max(lengths[row] for lengths in self.lengths))
        still = next((i for i, token in enumerate(path) if token != i), len(path))
        moved = torch.tensor(path[still:], dtype=torch.int64, device=self.positions.device) + length
        if len(moved):
            self._move(self.positions[row], length + still, moved)
        for layer, lengths in enumerate(self.lengths):
            if lengths[row] <= length:
                continue
            self._forget(row, layer, length)
            held = sum(length + token < lengths[row] for token in path)
            if held > still:
                source = moved[: held - still]
                for part in (*parts(self.keys[layer]), *parts(self.values[layer])):
                    self._move(part[row], length + still, source)
            lengths[row] = length + held

    @staticmethod
    def _move(slots: Tensor, start: int, source: Tensor) -> None:
        """Copy slots to `start` and after, in a row [heads, capacity, size] or [capacity]."""
        dim = max(slots.dim() - 2, 0)
        # index_select copies first, so source and destination may overlap.
        slots.narrow(dim, start, len(source)).copy_(slots.index_select(dim, source))

    def trim(self, row: int, length: int, layers: range | None = None) -> None:
        """Forget the tokens of `row` after the first `length`; in `layers` only, unless None.

        Raises:
            CacheError: for a row or layers that do not exist, or a negative length.
        """
        check_row(row, self.rows)
        check_length(row, length)
        for layer in layers_to_trim(layers, len(self.lengths)):
            self.lengths[layer][row] = min(self.lengths[layer][row], length)
            self._forget(row, layer, length)

    def _forget(self, row: int, layer: int, length: int) -> None:
        if layer in self.block_means:
            self.block_means[layer].forget(row, length)

    @property
    def row_format(self) -> dict[str, str | int]:
        """Description of a row's content; see `forerun.contracts.SavesRows`."""
        keys = self.keys[0]
        _, heads, _, size = keys.shape
        numbers = {"layers": len(self.keys), "kv_heads": heads, "head_dim": size}
        coded = isinstance(keys, Codes)
        dtype = self.kv_dtype if coded else str(keys.dtype).removeprefix("torch.")
        return {"layout": "token by token", "dtype": dtype, **numbers}

    def row_shapes(self, length: int) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Types and shapes of the tensors of one layer; see `forerun.contracts.SavesRows`."""
        return {
            name: (part.dtype, (part.shape[1], length, part.shape[3]))
            for name, part in self._parts(0).items()
        }

    def read_row(self, row: int, layer: int, length: int) -> dict[str, Tensor]:
        """Copy tokens of a row out; see `forerun.contracts.SavesRows`."""
        return {name: part[row, :, :length].cpu() for name, part in self._parts(layer).items()}

    def write_row(self, row: int, layer: int, length: int, tensors: Mapping[str, Tensor]) -> None:
        """Copy tokens into a row; see `forerun.contracts.SavesRows`."""
        for name, part in self._parts(layer).items():
            part[row, :, :length] = tensors[name]
        self.positions[row, :length] = torch.arange(length, device=self.positions.device)
        self.lengths[layer][row] = length
        self._forget(row, layer, 0)

    def _parts(self, layer: int) -> dict[str, Tensor]:
        """The tensors of a layer, by name."""
        stores = {"keys": self.keys[layer], "values": self.values[layer]}
        return {
            f"{name}.{index}" if index else name: part
            for name, store in stores.items()
            for index, part in enumerate(parts(store))
        }


class Appending:
    """Slots of the new tokens of one forward pass in the cache.

    Args:
        cache: the cache that they are appended to.
        batch: the tokens.
        starts: tokens held before, by row of the batch.
        positions: positions of the new tokens on the device, [B, n], -1 for padding.

    Attributes:
        even: True if all rows start at the same slot and have the same number of tokens.
        total: number of slots that the longest row fills afterwards.
    """

    def __init__(
        self, cache: StaticCache, batch: Batch, starts: tuple[int, ...], positions: Tensor
    ) -> None:
        self._cache, self.batch = cache, batch
        self.starts, self.positions = starts, positions
        self.even = batch.even and len(set(starts)) == 1
        self.total = max(s + count for s, count in zip(starts, batch.counts, strict=True))
        rows = tuple(batch.rows)
        adjacent = rows == tuple(range(rows[0], rows[0] + len(rows)))
        # Adjacent rows are read and written in place; other rows are gathered.
        self._index: slice | Tensor = slice(rows[0], rows[0] + len(rows))
        if not adjacent:
            self._index = torch.tensor(rows, device=positions.device)
        self._scatter = None if adjacent and self.even else self._targets()

    def _targets(self) -> tuple[Tensor, ...]:
        """Flat index in the batch, row and slot of each token that is not padding."""
        batch = self.batch
        starts = zip(batch.rows, self.starts, batch.counts, strict=True)
        targets = [
            (index * batch.width + token, row, start + token)
            for index, (row, start, count) in enumerate(starts)
            for token in range(count)
        ]
        return torch.tensor(targets, device=self.positions.device).unbind(1)

    def write_positions(self) -> None:
        """Write the positions of the new slots."""
        if self._scatter is None:
            start = self.starts[0]
            self._cache.positions[self._index, start : start + self.batch.width] = self.positions
        else:
            flat, rows, slots = self._scatter
            self._cache.positions[rows, slots] = self.positions.flatten()[flat]

    def observe(self, layer: int, queries: Tensor) -> None:
        """Receive the queries [B, heads, n, head_dim] of the new tokens in a layer, before their rotation.

        Only caches that score tokens by attention use them.
        """

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store the new keys and values [B, kv_heads, n, head_dim] of one layer."""
        for store, new in ((self._cache.keys[layer], keys), (self._cache.values[layer], values)):
            if self._scatter is None:
                start = self.starts[0]
                store[self._index, :, start : start + new.shape[2]] = new
            else:
                flat, rows, slots = self._scatter
                picked = new.transpose(1, 2).flatten(0, 1)[flat]
                # Unlike elsewhere, torch does not convert the precision for scattered slots.
                store[rows, :, slots] = picked.to(store.dtype)
        for row, start, count in zip(self.batch.rows, self.starts, self.batch.counts, strict=True):
            self._cache.lengths[layer][row] = start + count

    def turned(self, queries: Tensor) -> Tensor:
        """Queries [B, heads, n, head_dim], turned if the cache's keys are read turned."""
        keys = self._cache.keys[0]
        if not isinstance(keys, Codes):
            return queries
        return turn(queries, keys.group) / keys.group

    def read(self, layer: int, first: int = 0, end: int | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values [B, kv_heads, end - first, head_dim] of the slots from `first` to `end`.

        `end` is the last slot in use if None. The keys are for queries that are `turned`.
        """
        window = slice(first, self.total if end is None else end)
        index = (self._index, slice(None), window)
        return self._numbers(self._cache.keys[layer], index), self._numbers(
            self._cache.values[layer], index
        )

    def read_at(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, kv_heads, s, head_dim] of some slots of each head, int64 [B, kv_heads, s]."""
        rows = torch.tensor(self.batch.rows, device=slots.device)[:, None, None]
        index = (rows, torch.arange(slots.shape[1], device=slots.device)[:, None], slots)
        return self._numbers(self._cache.keys[layer], index), self._numbers(
            self._cache.values[layer], index
        )

    def block_means(self, layer: int) -> Tensor:
        """Mean keys [B, kv_heads, blocks, head_dim] of the blocks in use, in fp32 at least.

        They are means of the full stored keys, even for a coarse view. Means of blocks that a row
        has not filled are undefined.
        """
        cache = self._cache
        store = cache.keys[layer]
        if layer not in cache.block_means:
            sizes = (cache.rows, store.shape[1], cache.capacity, store.shape[3])
            dtype = torch.promote_types(cache.dtype, torch.float32)
            cache.block_means[layer] = BlockMeans(sizes, dtype, self.positions.device)
        means = cache.block_means[layer]

        def read(row: int, slots: slice) -> Tensor:
            return self._numbers(store, (row, slice(None), slots), coarse=False)

        for row, start, count in zip(self.batch.rows, self.starts, self.batch.counts, strict=True):
            means.update(row, start + count, read)
        return means.means[self._index, :, : self.total // BLOCK_SIZE]

    def _numbers(self, store: Store, index: tuple[Any, ...], coarse: bool | None = None) -> Tensor:
        """Stored numbers as the model reads them, as coarsely as the view says unless `coarse` is given."""
        if isinstance(store, Codes):
            if coarse is None:
                coarse = self.batch.view is not None and self.batch.view.coarse
            return store.read(index, coarse=coarse, as_stored=True)
        return store[index].to(self._cache.dtype)

    def slot_positions(self, first: int = 0) -> Tensor:
        """Positions [B, total - first] of the slots from `first` on."""
        return self._cache.positions[self._index, first : self.total]


class BlockMeans:
    """Mean keys of one layer; each is computed once, and again after its row has changed.

    Args:
        shape: rows, key heads, tokens per row, size of a head.
        dtype, device: of the means.
    """

    def __init__(
        self, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device
    ) -> None:
        rows, heads, capacity, size = shape
        blocks = (rows, heads, capacity // BLOCK_SIZE, size)
        self.means = torch.zeros(blocks, dtype=dtype, device=device)
        self._computed = [0] * rows

    def update(self, row: int, length: int, read: Callable[[int, slice], Tensor]) -> None:
        """Compute the means of the whole blocks of a row's first `length` tokens.

        Args:
            read: returns the keys [kv_heads, slots, head_dim] in a range of slots of a row.
        """
        computed, blocks = self._computed[row], length // BLOCK_SIZE
        if computed < blocks:
            keys = read(row, slice(computed * BLOCK_SIZE, blocks * BLOCK_SIZE))
            whole = keys.reshape(len(keys), -1, BLOCK_SIZE, keys.shape[-1])
            self.means[row, :, computed:blocks] = whole.to(self.means.dtype).mean(2)
            self._computed[row] = blocks

    def forget(self, row: int, length: int) -> None:
        """Discard means that depend on tokens of a row after the first `length`, because those change."""
        self._computed[row] = min(self._computed[row], length // BLOCK_SIZE)
