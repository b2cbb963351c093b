"""Acceptance by depth and rank, and the shape that is fastest for it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.tree_acceptance import AcceptanceCounts, fastest_shape
from forerun.core import Draft, Origin, Tree, Verdict
from forerun.trees.search import best_shape
from tests.helpers.tree_tokens import expected_tokens_tree


def test_costs_decide_on_size_and_depth() -> None:
    table = np.random.default_rng(1).dirichlet(np.ones(4), size=3)[:, :3]

    def rate(shape: Tree) -> float:
        return expected_tokens_tree(shape.parents, table) / seconds(len(shape), shape.depth)

    def seconds(nodes: int, levels: int) -> float:
        return 1.0 + 0.15 * nodes + 0.1 * levels

    shapes = (
        Tree(parents)
        for count in range(1, 7)
        for parents in itertools.product(*(range(-1, node) for node in range(count)))
    )
    fitting = [shape for shape in shapes if shape.depth <= 3 and max(shape.ranks) < 3]
    assert rate(fastest_shape(table, 6, seconds)) == pytest.approx(max(map(rate, fitting)))
    free = fastest_shape(table, 6, lambda nodes, levels: 1.0)
    most = best_shape(table, 6, 3).tokens
    assert expected_tokens_tree(free.parents, table) == pytest.approx(most)
    assert len(fastest_shape(table, 6, lambda nodes, levels: float(nodes))) == 1


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
