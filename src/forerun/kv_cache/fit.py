"""Whether a batch fits the cache that it is to be run on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from forerun.core import Batch
from forerun.errors import CacheError


class Held(Protocol):
    """What is asked of a cache."""

    @property
    def rows(self) -> int: ...

    @property
    def capacity(self) -> int: ...

    def length(self, row: int, layer: int | None = None) -> int: ...


def held_before(batch: Batch, cache: Held, layers: range) -> tuple[int, ...]:
    """How many tokens each row of a batch holds before it is run in `layers`.

    Raises:
        CacheError: for a row that the cache does not have, that would overflow, whose layers hold
            different numbers of tokens, or whose positions leave some out.
    """
    starts = []
    for row, positions in zip(batch.rows, batch.positions, strict=True):
        held = {cache.length(row, layer) for layer in layers}
        start = min(held)
        if len(held) > 1:
            raise CacheError.uneven_layers(row, start, max(held))
        if start + len(positions) > cache.capacity:
            raise CacheError.full(row, start, len(positions), cache.capacity)
        for before, position in enumerate(positions, start):
            if position > before:
                raise CacheError.behind_a_gap(row, position, before)
        starts.append(start)
    return tuple(starts)


def check_row(row: int, rows: int) -> None:
    """Raise for a row that a cache of so many rows does not have.

    Raises:
        CacheError: naming the rows that there are.
    """
    if not 0 <= row < rows:
        raise CacheError.wrong_row(row, rows)


def check_path(row: int, length: int, path: Sequence[int], held: int) -> None:
    """Raise unless a row that holds `held` tokens has those at `path` after the first `length`.

    Raises:
        CacheError: for a path that does not ascend or reaches beyond them.
    """
    ascending = all(low < high for low, high in zip((-1, *path), path, strict=False))
    if not ascending or not 0 <= length <= held or (path and length + path[-1] >= held):
        raise CacheError.wrong_path(row, length, path, held)


def check_length(row: int, length: int) -> None:
    """Raise for a length that no row can be trimmed to.

    Raises:
        CacheError: for a negative one.
    """
    if length < 0:
        raise CacheError.negative_length(row, length)


def layers_to_trim(layers: range | None, num_layers: int) -> range:
    """Some layers of a cache; all of them for None.

    Raises:
        CacheError: for layers that the cache does not have.
    """
    if layers is None:
        return range(num_layers)
    if layers and not 0 <= min(layers) <= max(layers) < num_layers:
        raise CacheError.wrong_layers(layers, num_layers)
    return layers
