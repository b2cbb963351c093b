"""What a batch says of its tokens: positions, padding, and which token sees which."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import Batch, Tree
from forerun.errors import CacheError, ConfigError
from forerun.testing.toy import ToyCache


def cache_with(lengths: list[int]) -> ToyCache:
    cache = ToyCache(len(lengths), 64)
    for held, length in zip(cache.token_ids, lengths, strict=True):
        held.extend([0] * length)
    return cache


@st.composite
def rows(draw: st.DrawFn) -> list[tuple[int, Tree | None, int]]:
    """For each row the committed tokens, the tree behind them, and how many of its nodes are new."""
    some: list[tuple[int, Tree | None, int]] = []
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 6))
        tree = Tree(tuple(draw(st.integers(-1, node - 1)) for node in range(count)))
        new = draw(st.integers(1, count))
        text = draw(st.integers(0, 4))
        if draw(st.booleans()):
            some.append((text, tree, new))
        else:
            some.append((text + count - new, None, new))
    return some


@given(rows())
def test_every_token_sees_the_text_and_its_own_path(
    some: list[tuple[int, Tree | None, int]],
) -> None:
    trees = [tree for _, tree, _ in some]
    held = [text + (0 if tree is None else len(tree) - new) for text, tree, new in some]
    tokens = [list(range(1, new + 1)) for _, _, new in some]
    batch = Batch.after(cache_with(held), range(len(some)), tokens, trees=trees)
    padded = batch.padded(batch.token_ids, -7)
    assert padded.shape == (len(some), batch.width)
    mask = batch.tree_mask
    assert (mask is None) == all(tree is None or tree.is_chain for tree in trees)
    for index, (text, tree, new) in enumerate(some):
        assert padded[index].tolist() == tokens[index] + [-7] * (batch.width - new)
        shape = Tree.chain(new) if tree is None else tree
        for node in range(len(shape) - new, len(shape)):
            path = shape.path_to(node)
            token = node - (len(shape) - new)
            assert batch.positions[index][token] == text + len(path) - 1
            if mask is None:
                assert path == list(range(node + 1))
                continue
            # Columns are the row's last tokens: what comes before them is seen by all.
            first = held[index] - (mask.shape[2] - batch.width)
            columns = np.arange(max(-first, 0), mask.shape[2])
            seen = [first + column for column in columns if mask[index, token, column]]
            wanted = [*range(text), *(text + step for step in path)]
            assert seen == [slot for slot in wanted if slot >= first]


REFUSED: dict[str, tuple[Any, ...]] = {
    "no rows": ([], [], []),
    "a row twice": ([1, 1], [[1], [2]], [[0], [0]]),
    "rows without tokens": ([0, 1], [[1]], [[0], [0]]),
    "tokens without rows": ([0], [[1], [2]], [[0], [0]]),
    "a row of nothing": ([0, 1], [[1], []], [[0], []]),
    "too few positions": ([0], [[1, 2]], [[0]]),
    "too many positions": ([0], [[1]], [[0, 1]]),
    "positions of no row": ([0], [[1]], [[0], [0]]),
    "a negative position": ([0], [[1, 2]], [[0, -1]]),
    "a tree for one of two": ([0, 1], [[1], [1]], [[0], [0]], [Tree((-1,))]),
    "a tree that is too small": ([0], [[1, 2]], [[0, 1]], [Tree((-1,))]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_parts_that_do_not_fit_are_refused(case: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Batch(*REFUSED[case])
    assert "\n" not in str(caught.value)


def test_a_batch_is_held_against_its_cache() -> None:
    cache = cache_with([3, 0])
    with pytest.raises(CacheError, match="row 2 is not in this cache"):
        Batch.after(cache, [2], [[1]])
    with pytest.raises(CacheError, match="row 1 holds 0 tokens and cannot hold 2 nodes of a tree"):
        Batch.after(cache, [0, 1], [[1], [1]], trees=[None, Tree((-1, -1, 0))])
    with pytest.raises(ConfigError):
        Batch.after(cache, [0], [[1], [2]])
