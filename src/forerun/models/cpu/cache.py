"""The caches of the kernels, with and without eviction, and the translation of the kernels' errors."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from forerun import _native
from forerun.compression import Compression
from forerun.compression.methods import Rotate
from forerun.core import Batch, View
from forerun.errors import CacheError, ConfigError, DistributionError, MemoryLimitError
from forerun.kv_cache import Evicting, QueryLog, check_view


@dataclass(frozen=True)
class TypedErrors:
    """Context manager that turns errors of the kernels into errors of our own.

    It is a class because it is entered for each part of a model: a generator takes several times as
    long.

    Args:
        name: name of the model, module or cache that is used, for messages.
    """

    name: str

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        if isinstance(error, _native.kernels.CacheError):
            raise CacheError(str(error)) from None
        if isinstance(error, _native.kernels.RowError):
            raise DistributionError(f"{self.name}: {error}.") from None
        if isinstance(error, MemoryError):
            raise MemoryLimitError(
                f"there is not enough memory to run {self.name}; run fewer tokens at once."
            ) from None
        if isinstance(error, (ValueError, TypeError)):
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise ConfigError(f"{self.name} cannot run this: {first}") from None


_ERRORS = TypedErrors("the cache")


@dataclass
class DraftHead:
    """The part of the output head for the tokens that may be drafted in a row.

    Args:
        key: the request that is drafted for, and the number of the vocabulary's first tokens that
            it holds.
        native: the kernels' object.
        seen, likely: number of tokens of the text, and of `ChainRequest.likely`, that it holds.
    """

    key: tuple[int, int]
    native: Any
    seen: int = 0
    likely: int = 0


class CpuCache:
    """Keys and values of a batch of rows, in the order in which the kernels read them.

    Args:
        native: the kernels' object.
    """

    def __init__(self, native: Any) -> None:
        self.native = native
        self.kv_dtype = str(native.precision)
        self.rows, self.capacity = int(native.rows), int(native.capacity)
        self.draft_heads: dict[int, DraftHead] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values; memory is allocated as they fill."""
        return int(self.native.nbytes)

    def length(self, row: int, layer: int | None = None) -> int:
        """Number of tokens of `row` in `layer`; in its shortest layer if None.

        Raises:
            CacheError: for a row or a layer that does not exist.
        """
        native = self.native
        with _ERRORS:
            return int(native.length(row) if layer is None else native.layer_length(layer, row))

    def keep(self, row: int, length: int, path: Sequence[int]) -> None:
        """Keep the first `length` tokens of `row` and, of those after them, the ones at `path`, in order.

        A layer that does not hold all of them yet keeps those that it holds.

        Raises:
            CacheError: for a row that does not exist, and unless `path` ascends and the longest
                layer holds it.
        """
        with _ERRORS:
            self.native.keep(row, length, path)

    def trim(self, row: int, length: int, layers: range | None = None) -> None:
        """Forget the tokens of `row` after the first `length`; in `layers` only, unless None.

        Raises:
            CacheError: for a row or layers that do not exist, or a negative length.
        """
        with _ERRORS:
            self.native.trim(row, length, None if layers is None else (layers.start, layers.stop))

    def check_view(self, view: View | None) -> None:
        """Refuse a view that the cache cannot be read through.

        Raises:
            CacheError: for a coarse view of a cache without int8 codes.
        """
        check_view(view, self.kv_dtype)

    def room_for_queries(self, batch: Batch, layers: range) -> Tensor | None:
        """Memory [layers, tokens, heads * head_dim] for a forward's queries; None if not needed."""
        return None

    def note_queries(self, batch: Batch, layers: range, queries: Tensor) -> None:
        """Receive the queries of a forward that has run."""

    @property
    def row_format(self) -> dict[str, str | int]:
        """Description of a row's content; see `forerun.contracts.SavesRows`."""
        native = self.native
        numbers = ("layers", "kv_heads", "head_dim", "tile_bytes")
        return {
            # The number counts versions: the order of the nibbles in a tile has changed once.
            "layout": "tiles of the kernels, 2",
            "dtype": self.kv_dtype,
            **{name: int(getattr(native, name)) for name in numbers},
        }

    def row_shapes(self, length: int) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Types and shapes of the tensors of one layer; see `forerun.contracts.SavesRows`."""
        with _ERRORS:
            return {"tiles": (torch.uint8, (int(self.native.row_bytes(0, 0, length)),))}

    def read_row(self, row: int, layer: int, length: int) -> dict[str, Tensor]:
        """Copy tokens of a row out; see `forerun.contracts.SavesRows`."""
        tiles = torch.empty(self.row_shapes(length)["tiles"][1], dtype=torch.uint8)
        with _ERRORS:
            self.native.read_row(layer, row, length, tiles.numpy())
        return {"tiles": tiles}

    def write_row(self, row: int, layer: int, length: int, tensors: Mapping[str, Tensor]) -> None:
        """Copy tokens into a row; see `forerun.contracts.SavesRows`."""
        with _ERRORS:
            self.native.write_row(layer, row, length, tensors["tiles"].numpy())


def new_native_cache(
    native: Any,
    rows: int,
    capacity: int,
    name: str,
    kv_dtype: str = "",
) -> Any:
    """The kernels' own empty cache of `rows` rows of `capacity` tokens each.

    Args:
        native: the kernels' model or module that it is for.
        name: name of the model or module in messages.
        kv_dtype: precision of keys and values; empty for the model's own.

    Raises:
        CacheError: for fewer than one row or token.
        MemoryLimitError: if it does not fit into memory.
    """
    if rows < 1 or capacity < 1:
        raise CacheError.no_room(rows, capacity)
    try:
        size = (rows, capacity, kv_dtype) if kv_dtype else (rows, capacity)
        return native.new_cache(*size)
    except (MemoryError, ValueError, TypeError):  # The last two for sizes beyond any memory.
        raise MemoryLimitError(
            f"there is not enough memory for {rows} x {capacity} tokens in the cache of {name}; "
            "use a smaller context or batch."
        ) from None


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
