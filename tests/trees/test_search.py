"""The dynamic program finds what trying every tree finds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from forerun.core import Tree
from forerun.errors import ConfigError
from forerun.trees.search import best_shape
from tests.helpers.tree_tokens import expected_tokens_tree


def all_shapes(count: int) -> Iterator[Tree]:
    for parents in itertools.product(*(range(-1, node) for node in range(count))):
        yield Tree(parents)


def tables(seed: int) -> np.ndarray:
    """Random acceptances; ranks need not fall."""
    return np.random.default_rng(seed).dirichlet(np.ones(4), size=3)[:, :3]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("nodes", [1, 2, 4, 6])
def test_no_tree_gives_more(seed: int, nodes: int, depth: int) -> None:
    table = tables(seed)
    fitting = [
        shape
        for count in range(1, nodes + 1)
        for shape in all_shapes(count)
        if shape.depth <= depth and max(shape.ranks) < 3
    ]
    found = best_shape(table, nodes, depth)
    assert found.tokens == pytest.approx(
        max(expected_tokens_tree(shape.parents, table) for shape in fitting)
    )
    assert found.tokens == pytest.approx(expected_tokens_tree(found.shape.parents, table))
    assert found.shape.depth <= depth
    assert len(found.shape) <= nodes


def test_more_nodes_than_there_are_places_give_what_fits() -> None:
    assert len(best_shape([0.5, 0.2], 100, 2).shape) == 2 + 4


@pytest.mark.parametrize(
    ("acceptance", "nodes", "depth"),
    [([0.5], 0, 1), ([0.5], 4, 0), ([0.5], 129, 2), ([], 2, 2), ([1.5], 2, 2), ([[[0.5]]], 2, 2)],
)
def test_nonsense_is_refused(acceptance: list[float], nodes: int, depth: int) -> None:
    with pytest.raises(ConfigError):
        best_shape(acceptance, nodes, depth)
