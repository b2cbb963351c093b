"""The cache of the kernels: its own layout, the same contract as every other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forerun.errors import CacheError, MemoryLimitError
from forerun.models.cpu.errors import TypedErrors

_ERRORS = TypedErrors("the cache")


class CpuCache:
    """Keys and values of a batch of rows, in the order in which the kernels read them.

    Args:
        native: of the kernels.
    """

    def __init__(self, native: Any) -> None:
        self.native = native
        self.rows, self.capacity = int(native.rows), int(native.capacity)

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values; memory is taken as they fill."""
        return int(self.native.nbytes)

    def length(self, row: int, layer: int | None = None) -> int:
        """Tokens of `row` in `layer`; in its shortest layer if None.

        Raises:
            CacheError: for a row or a layer that does not exist.
        """
        native = self.native
        with _ERRORS:
            return int(native.length(row) if layer is None else native.layer_length(layer, row))

    def keep(self, row: int, length: int, path: Sequence[int]) -> None:
        """Of the tokens of `row` after the first `length`, keep those at `path`, in their order.

        A layer that does not hold all of them yet keeps those that it holds.

        Raises:
            CacheError: for a row that does not exist, and unless `path` ascends and the longest
                layer holds it.
        """
        with _ERRORS:
            self.native.keep(row, length, path)

    def trim(self, row: int, length: int, layers: range | None = None) -> None:
        """Forget the tokens of `row` after the first `length`, in `layers` alone unless None.

        Raises:
            CacheError: for a row or layers that do not exist, or a negative length.
        """
        with _ERRORS:
            self.native.trim(row, length, None if layers is None else (layers.start, layers.stop))


def new_cache(native: Any, rows: int, capacity: int, name: str) -> CpuCache:
    """An empty cache of `rows` rows of `capacity` tokens each.

    Args:
        native: the kernels' model or module that it is for.
        name: how messages call it.

    Raises:
        CacheError: for fewer than one row or token.
        MemoryLimitError: when it does not fit into memory.
    """
    if rows < 1 or capacity < 1:
        raise CacheError.no_room(rows, capacity)
    try:
        return CpuCache(native.new_cache(rows, capacity))
    except (MemoryError, ValueError, TypeError):  # The latter for numbers that no memory has.
        raise MemoryLimitError(
            f"there is not enough memory for {rows} x {capacity} tokens in the cache of {name}; "
            "use a smaller context or batch."
        ) from None
