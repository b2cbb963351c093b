"""Checks that a batch fits the cache that it is to be run on."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.contracts import Cache
from forerun.core import Batch, View
from forerun.errors import CacheError


def held_before(batch: Batch, cache: Cache, layers: range) -> tuple[int, ...]:
    """Number of tokens that each row of a batch holds before it is run in `layers`.

    Raises:
        CacheError: for a row that the cache does not have, that would overflow, whose layers hold
            different numbers of tokens, or whose positions leave some out.
    """
    starts = []
    for row, positions in zip(batch.rows, batch.positions, strict=True):
        held = {cache.length(row, layer) for layer in layers}
        start = min(held)
        if len(held) > 1:
            raise CacheError(
                f"layers of row {row} hold {start} to {max(held)} tokens; trim the row or run the "
                "layers that lag behind first."
            )
        if start + len(positions) > cache.capacity:
            raise CacheError(
                f"row {row} holds {start} tokens and cannot take {len(positions)} more: its "
                f"capacity is {cache.capacity}; make the cache larger or trim the row."
            )
        for before, position in enumerate(positions, start):
            if position > before:
                raise CacheError(
                    f"position {position} in row {row} follows {before} tokens; positions start at "
                    "0 and leave none out."
                )
        starts.append(start)
    return tuple(starts)


def check_row(row: int, rows: int) -> None:
    """Check that a cache of `rows` rows has this row.

    Raises:
        CacheError: naming the rows that it has.
    """
    if not 0 <= row < rows:
        raise CacheError(f"row {row} is not in this cache; it has rows 0 to {rows - 1}.")


def check_view(view: View | None, kv_dtype: str) -> None:
    """Check that a coarse view reads a cache of int8, whose codes have upper nibbles.

    Raises:
        CacheError: for a cache of another precision.
    """
    if view is not None and view.coarse and kv_dtype != "int8":
        raise CacheError(
            f"this cache is of kv_dtype {kv_dtype!r}, and only codes of int8 have upper nibbles that can be "
            "read alone; load the model with kv_dtype 'int8'."
        )


def check_path(row: int, length: int, path: Sequence[int], held: int) -> None:
    """Check that a row of `held` tokens has those at `path` after the first `length`.

    Raises:
        CacheError: for a path that does not ascend or reaches beyond them.
    """
    ascending = all(low < high for low, high in zip((-1, *path), path, strict=False))
    if not ascending or not 0 <= length <= held or (path and length + path[-1] >= held):
        raise CacheError(
            f"cannot keep tokens {list(path)} after the first {length} in row {row}: they must "
            f"ascend from 0 and the row holds {held} tokens."
        )


def check_length(row: int, length: int) -> None:
    """Check that a row can be trimmed to `length` tokens.

    Raises:
        CacheError: for a negative length.
    """
    if length < 0:
        raise CacheError(f"cannot trim row {row} to {length} tokens; 0 empties it.")


def layers_to_trim(layers: range | None, num_layers: int) -> range:
    """The given layers of a cache; all of them for None.

    Raises:
        CacheError: for layers that the cache does not have.
    """
    if layers is None:
        return range(num_layers)
    if layers and not 0 <= min(layers) <= max(layers) < num_layers:
        raise CacheError(
            f"cannot trim layers {layers.start} to {layers.stop - 1} of a cache of {num_layers} "
            "layers."
        )
    return layers
