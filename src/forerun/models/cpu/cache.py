"""The cache of the kernels: its own layout, the same contract as every other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forerun import _native
from forerun.errors import CacheError


@dataclass(frozen=True)
class CpuCache:
    """Keys and values of a batch of rows, in the order in which the kernels read them."""

    native: Any

    @property
    def capacity(self) -> int:
        """Slots a row, in tokens."""
        return int(self.native.capacity)

    @property
    def rows(self) -> int:
        """Rows of the batch."""
        return int(self.native.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values; memory is taken as they fill."""
        return int(self.native.nbytes)

    def length(self, row: int) -> int:
        """Filled slots of `row` in its shortest layer.

        Raises:
            CacheError: for a row that does not exist.
        """
        try:
            return int(self.native.length(row))
        except _native.kernels.CacheError as error:
            raise CacheError(str(error)) from None

    def view(self, rows: Sequence[int]) -> CpuCacheView:
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
        return CpuCacheView(self.native, list(rows))

    def keep(self, row: int, start: int, slots: Sequence[int]) -> None:
        """Of the slots from `start` on, keep only `start + slots[i]`, moved to `start + i`.

        A layer that does not hold all of them yet keeps those that it holds.

        Raises:
            CacheError: unless `slots` ascend and the longest layer holds them.
        """
        try:
            self.native.keep(row, start, slots)
        except _native.kernels.CacheError as error:
            raise CacheError(str(error)) from None

    def trim(self, row: int, length: int, layers: range | None = None) -> None:
        """Forget all slots of `row` from `length` on, in `layers` alone unless None.

        Raises:
            CacheError: for a negative length, or layers that the cache does not have.
        """
        try:
            self.native.trim(row, length, None if layers is None else (layers.start, layers.stop))
        except _native.kernels.CacheError as error:
            raise CacheError(str(error)) from None


@dataclass(frozen=True)
class CpuCacheView:
    """Some rows of a cache, seen as a batch."""

    native: Any
    rows: list[int]
