"""The cache of the kernels: a layout of its own behind the contract of all caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forerun.core import Batch, View
from forerun.errors import CacheError, MemoryLimitError
from forerun.kv_cache import check_view
from forerun.models.cpu.errors import TypedErrors

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
