"""The cache alone: what is written is read back, rows are ragged, rollback forgets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from forerun.core import Batch
from forerun.errors import CacheError
from forerun.kv_cache import Appending, StaticCache

LAYERS, ROWS, HEADS, CAPACITY, SIZE = 2, 3, 2, 8, 4


@pytest.fixture
def cache() -> StaticCache:
    shape = (ROWS, HEADS, CAPACITY, SIZE)
    return StaticCache(LAYERS, shape, torch.float64, torch.device("cpu"))


def new(rows: list[int], positions: list[list[int]]) -> Batch:
    return Batch(rows, [[0] * len(places) for places in positions], positions)


def begin(cache: StaticCache, batch: Batch, layers: range) -> Appending:
    return cache.append(batch, torch.from_numpy(batch.padded(batch.positions, -1)), layers)


def put(cache: StaticCache, rows: list[int], positions: list[list[int]], layers: range) -> Tensor:
    """Append recognizable keys (values are their negatives) and return them."""
    batch = new(rows, positions)
    appending = begin(cache, batch, layers)
    keys = torch.rand(len(rows), HEADS, batch.width, SIZE, dtype=torch.float64)
    for layer in layers:
        appending.write(layer, keys, -keys)
    return keys


ALL = range(LAYERS)


@pytest.mark.parametrize("rows", [[0, 1, 2], [1, 2], [2], [0, 2], [2, 0]])
def test_reads_back_what_was_written(cache: StaticCache, rows: list[int]) -> None:
    first = put(cache, rows, [[0, 1, 2]] * len(rows), ALL)
    second = put(cache, rows, [[3]] * len(rows), ALL)
    keys, values = begin(cache, new(rows, [[4]] * len(rows)), ALL).read(1)
    assert torch.equal(keys[:, :, :4], torch.cat((first, second), dim=2))
    assert torch.equal(values, -keys)
    assert [cache.length(row) for row in range(ROWS)] == [4 if r in rows else 0 for r in range(3)]


def test_padding_is_not_written(cache: StaticCache) -> None:
    keys = put(cache, [0, 1], [[0, 1, 2], [0]], ALL)
    assert [cache.length(row) for row in range(ROWS)] == [3, 1, 0]
    assert torch.equal(cache.keys[0][1, :, :1], keys[1, :, :1])
    assert not cache.keys[0][1, :, 1:].any()
    assert not cache.keys[0][2].any()


def test_ragged_rows_go_to_their_own_slots(cache: StaticCache) -> None:
    put(cache, [0, 1], [[0, 1, 2], [0]], ALL)
    keys = put(cache, [0, 1], [[3], [1, 2]], ALL)
    assert torch.equal(cache.keys[1][0, :, 3], keys[0, :, 0])
    assert torch.equal(cache.keys[1][1, :, 1:3], keys[1])
    assert cache.positions[1, :3].tolist() == [0, 1, 2]


def test_keep_moves_the_path_and_leaves_other_rows(cache: StaticCache) -> None:
    before = put(cache, [0, 1], [[0, 1, 2, 2, 3, 3]] * 2, ALL)
    cache.keep(0, 1, [0, 2, 4])
    assert [cache.length(0), cache.length(1)] == [4, 6]
    assert torch.equal(cache.keys[1][0, :, :4], before[0, :, [0, 1, 3, 5]])
    assert torch.equal(cache.values[0][0, :, :4], -before[0, :, [0, 1, 3, 5]])
    assert torch.equal(cache.keys[1][1, :, :6], before[1])
    assert cache.positions[0, :4].tolist() == [0, 1, 2, 3]


def test_keep_of_nothing_forgets_all_from_start(cache: StaticCache) -> None:
    put(cache, [0], [[0, 1, 2, 3]], ALL)
    cache.keep(0, 2, [])
    assert cache.length(0) == 2


def test_layers_grow_and_shrink_by_themselves(cache: StaticCache) -> None:
    put(cache, [0], [[0, 1]], ALL)
    put(cache, [0], [[2, 3, 4]], range(1))
    assert cache.length(0) == 2
    assert [cache.length(0, layer) for layer in ALL] == [5, 2]
    cache.keep(0, 1, [0, 2, 3])
    assert [lengths[0] for lengths in cache.lengths] == [4, 2]
    cache.trim(0, 3)
    assert [lengths[0] for lengths in cache.lengths] == [3, 2]
    cache.trim(0, 0)
    assert [lengths[0] for lengths in cache.lengths] == [0, 0]


def test_layers_of_different_lengths_are_not_run_together(cache: StaticCache) -> None:
    put(cache, [0], [[0, 1, 2]], range(1))
    with pytest.raises(CacheError, match="layers of row 0 hold 0 to 3 tokens"):
        put(cache, [0], [[3]], ALL)


def test_overflow_names_the_numbers(cache: StaticCache) -> None:
    put(cache, [1], [[0, 1, 2, 3, 4, 5]], ALL)
    with pytest.raises(CacheError, match=r"row 1 holds 6 tokens and cannot take 3 .* 8"):
        put(cache, [1], [[6, 7, 8]], ALL)
    put(cache, [1], [[6, 7]], ALL)
    assert cache.length(1) == cache.capacity == CAPACITY


@pytest.mark.parametrize("path", [[1, 0], [0, 0], [3], [-1]])
def test_keep_refuses_paths_that_are_not_held(cache: StaticCache, path: list[int]) -> None:
    put(cache, [0], [[0, 1, 2, 3]], ALL)
    with pytest.raises(CacheError, match="they must ascend"):
        cache.keep(0, 1, path)


@pytest.mark.parametrize("row", [3, -1])
def test_rows_that_do_not_exist_are_refused(cache: StaticCache, row: int) -> None:
    for wrong in (
        lambda: put(cache, [0, row], [[0], [0]], ALL),
        lambda: cache.length(row),
        lambda: cache.keep(row, 0, []),
        lambda: cache.trim(row, 0),
    ):
        with pytest.raises(CacheError, match=f"row {row} is not in this cache; it has rows 0 to 2"):
            wrong()
    assert [cache.length(row) for row in range(ROWS)] == [0] * ROWS


def test_other_misuse_is_refused(cache: StaticCache) -> None:
    with pytest.raises(CacheError, match="0 empties it"):
        cache.trim(0, -1)
    with pytest.raises(CacheError, match="position 1 in row 0 follows 0 tokens"):
        put(cache, [0], [[1]], ALL)
    with pytest.raises(CacheError, match="cannot trim layers 1 to 2 of a cache of 2 layers"):
        cache.trim(0, 0, range(1, 3))
    with pytest.raises(CacheError, match="at least 1 of each"):
        StaticCache(1, (0, 1, 8, 4), torch.float32, torch.device("cpu"))


def test_bytes_are_those_of_the_tensors(cache: StaticCache) -> None:
    slots = ROWS * CAPACITY
    assert cache.nbytes == 2 * LAYERS * slots * HEADS * SIZE * 8 + slots * 8


REFUSED: dict[str, tuple[Callable[[StaticCache], object], str]] = {
    "full": (lambda cache: begin(cache, new([1], [list(range(9))]), ALL), "cannot take 9 more"),
    "gap": (lambda cache: begin(cache, new([1], [[1]]), ALL), "follows 0 tokens"),
    "row": (lambda cache: cache.length(3), "it has rows 0 to 2"),
    "layers": (lambda cache: cache.trim(0, 0, range(2, 4)), "layers 2 to 3 of a cache of 2 layers"),
    "uneven": (lambda cache: begin(cache, new([0], [[3]]), ALL), "hold 2 to 3 tokens"),
    "path": (lambda cache: cache.keep(0, 1, [1, 0]), r"\[1, 0\] after the first 1 in row 0"),
    "length": (lambda cache: cache.trim(0, -1), "0 empties it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_in_one_line(name: str, cache: StaticCache) -> None:
    use, message = REFUSED[name]
    put(cache, [0], [[0, 1, 2]], ALL)
    cache.trim(0, 2, range(1, 2))
    with pytest.raises(CacheError, match=message) as caught:
        use(cache)
    assert "\n" not in str(caught.value)


def test_a_row_read_out_is_the_same_in_a_row_of_another_cache(cache: StaticCache) -> None:
    keys = put(cache, [1], [[0, 1, 2]], ALL)
    # A path of a tree: its slots and positions differ from a text's until it is kept.
    put(cache, [1], [[3, 3]], ALL)
    cache.keep(1, 3, [1])
    other = StaticCache(LAYERS, (1, HEADS, CAPACITY + 3, SIZE), torch.float64, torch.device("cpu"))
    put(other, [0], [[0, 1, 1, 1, 2]], ALL)
    assert other.row_format == cache.row_format
    for layer in ALL:
        tensors = cache.read_row(1, layer, 3)
        shapes = {name: (part.dtype, tuple(part.shape)) for name, part in tensors.items()}
        assert shapes == cache.row_shapes(3)
        other.write_row(0, layer, 3, tensors)
    read, values = begin(other, new([0], [[3]]), ALL).read(1)
    assert torch.equal(read[:, :, :3], keys)
    assert torch.equal(values[:, :, :3], -keys)
    assert [other.length(0, layer) for layer in ALL] == [3, 3]
    assert other.positions[0, :3].tolist() == [0, 1, 2]
