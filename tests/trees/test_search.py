"""The dynamic program finds what trying every tree finds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from forerun.core import Draft, Origin, Tree, Verdict
from forerun.errors import ConfigError
from forerun.trees.acceptance import AcceptanceCounts
from forerun.trees.search import best_for_costs, best_shape, expected_tokens
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
    assert found.tokens == pytest.approx(max(expected_tokens(one, table) for one in fitting))
    assert found.tokens == pytest.approx(expected_tokens(found.shape, table))
    assert found.tokens == pytest.approx(expected_tokens_tree(found.shape.parents, table))
    assert found.shape.depth <= depth
    assert len(found.shape) <= nodes


def test_costs_decide_on_size_and_depth() -> None:
    table = tables(1)

    def seconds(nodes: int, levels: int) -> float:
        return 1.0 + 0.15 * nodes + 0.1 * levels

    found = best_for_costs(table, seconds, 6, 3)
    rates = [
        expected_tokens(shape, table) / seconds(len(shape), shape.depth)
        for count in range(1, 7)
        for shape in all_shapes(count)
        if shape.depth <= 3 and max(shape.ranks) < 3
    ]
    assert found.tokens_per_second == pytest.approx(max(rates))
    free = best_for_costs(table, lambda nodes, levels: 1.0, 6, 3)
    assert free.tokens == pytest.approx(best_shape(table, 6, 3).tokens)
    dear = best_for_costs(table, lambda nodes, levels: float(nodes), 6, 3)
    assert len(dear.shape) == 1


def test_more_nodes_than_there_are_places_give_what_fits() -> None:
    assert len(best_shape([0.5, 0.2], 100, 2).shape) == 2 + 4


@pytest.mark.parametrize(
    ("acceptance", "nodes", "depth"),
    [([0.5], 0, 1), ([0.5], 4, 0), ([0.5], 129, 2), ([], 2, 2), ([1.5], 2, 2), ([[[0.5]]], 2, 2)],
)
def test_nonsense_is_refused(acceptance: list[float], nodes: int, depth: int) -> None:
    with pytest.raises(ConfigError):
        best_shape(acceptance, nodes, depth)
    with pytest.raises(ConfigError, match="must be above 0"):
        best_for_costs([0.5], lambda nodes, levels: 0.0, 2, 2)


def verdict_of(draft: Draft, path: tuple[int, ...]) -> Verdict:
    tokens = tuple(draft.token_ids[node] for node in path)
    return Verdict(path, (*tokens, 9), (Origin.ACCEPTED,) * len(path) + (Origin.BONUS,))


def test_acceptance_is_counted_where_it_was_tested() -> None:
    draft = Draft(Tree((-1, -1, 0, 0)), (1, 2, 3, 4))
    counts = AcceptanceCounts(3, 2)
    counts.observe(draft, verdict_of(draft, ()))
    counts.observe(draft, verdict_of(draft, (1,)))
    counts.observe(draft, verdict_of(draft, (0, 3)))
    counts.observe(draft, verdict_of(draft, (0,)))
    assert counts.tested.tolist() == [[4, 4], [2, 2], [0, 0]]
    assert counts.accepted.tolist() == [[2, 1], [0, 1], [0, 0]]
    table = counts.table()
    assert table.tolist() == [[0.5, 0.25], [0.0, 0.5], [0.0, 0.5]]


def test_a_request_that_ended_inside_the_path_counts_only_what_is_known() -> None:
    draft = Draft(Tree((-1, 0, 1)), (1, 2, 3))
    counts = AcceptanceCounts(3, 1)
    counts.observe(draft, verdict_of(draft, (0, 1, 2)).truncate(2))
    assert counts.tested[:, 0].tolist() == [1, 0, 0]
    assert counts.accepted[:, 0].tolist() == [1, 0, 0]
