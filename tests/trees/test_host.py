"""Trees grown on the host, against all nodes that there are."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core import NO_DRAFT, Draft, Plan, Request, Tree
from forerun.params import SamplingParams
from forerun.trees.host import Child, grow_on_host

Table = list[list[Child[int]]]


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """The children of each of a few states: different tokens, the most probable first."""
    size = draw(st.integers(1, 4))
    table = []
    for _ in range(size):
        tokens = draw(st.lists(st.integers(0, 5), max_size=3, unique=True))
        weights = draw(st.lists(st.integers(1, 9), min_size=3, max_size=3))
        shares = sorted((weight / sum(weights) for weight in weights), reverse=True)
        states = draw(st.lists(st.integers(0, size - 1), min_size=3, max_size=3))
        table.append(list(zip(tokens, shares, states, strict=False)))
    return table


def request(*stops: int) -> Request:
    return Request(0, [0], 1, SamplingParams(), seed=0, stop_token_ids=frozenset(stops))


def all_paths(table: Table, depth: int, stops: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    """The probability of every path of tokens that a tree may hold."""
    found: dict[tuple[int, ...], float] = {}
    level: list[tuple[tuple[int, ...], float, int]] = [((), 1.0, 0)]
    for _ in range(depth):
        below = [
            ((*path, token), reached * share, state)
            for path, reached, at in level
            if not path or path[-1] not in stops
            for token, share, state in table[at]
        ]
        found |= {path: reached for path, reached, _ in below}
        level = below
    return found


@given(tables(), st.integers(1, 4), st.integers(1, 20), st.sampled_from([(), (2,), (0, 3)]))
def test_best_first_takes_the_most_probable_nodes(
    table: Table, depth: int, num_nodes: int, stops: tuple[int, ...]
) -> None:
    plan = Plan(depth, num_nodes=num_nodes)
    draft = grow_on_host(request(*stops), plan, 0, table.__getitem__)
    paths = all_paths(table, depth, stops)
    taken = [tuple(draft.tokens_to(node)) for node in range(len(draft))]
    assert len(set(taken)) == len(taken) == min(num_nodes, len(paths))
    reached = [paths[path] for path in taken]
    assert reached == sorted(reached, reverse=True)
    best = heapq.nlargest(num_nodes, paths.values())
    assert reached == pytest.approx(best)


@given(
    tables(),
    st.lists(st.integers(0, 10), min_size=1, max_size=10),
    st.integers(1, 4),
    st.sampled_from([(), (2,)]),
)
def test_a_shape_takes_children_by_rank(
    table: Table, places: list[int], depth: int, stops: tuple[int, ...]
) -> None:
    shape = Tree(tuple(place % (node + 1) - 1 for node, place in enumerate(places)))
    plan = Plan(depth, tree=shape)
    draft = grow_on_host(request(*stops), plan, 0, table.__getitem__)
    expected = set()
    for ranks in shape.paths[:]:
        state = 0
        path: list[int] = []
        for rank in ranks[:depth]:
            if rank >= len(table[state]) or (path and path[-1] in stops):
                break
            token, _, state = table[state][rank]
            path.append(token)
        else:
            if len(ranks) <= depth:
                expected.add(tuple(path))
    assert {tuple(draft.tokens_to(node)) for node in range(len(draft))} == expected
    assert len(draft) == len(expected)


@given(tables(), st.integers(0, 6), st.sampled_from([(), (2,)]))
def test_a_chain_takes_the_first_child(table: Table, depth: int, stops: tuple[int, ...]) -> None:
    draft = grow_on_host(request(*stops), Plan(depth), 0, table.__getitem__)
    state = 0
    tokens: list[int] = []
    while len(tokens) < depth and table[state] and not (tokens and tokens[-1] in stops):
        token, _, state = table[state][0]
        tokens.append(token)
    assert draft == (Draft.chain(tokens) if tokens else NO_DRAFT)


@pytest.mark.parametrize(
    ("plan", "most"),
    [
        (Plan(5), 5),
        (Plan(9, num_nodes=7), 7),
        (Plan(2, num_nodes=40), 4),
        (Plan(3, tree=Tree((-1, -1, -1, 0, 0))), 2),
    ],
)
def test_states_are_expanded_when_needed_and_once(plan: Plan, most: int) -> None:
    numbers = itertools.count(1)
    asked: list[int] = []

    def expand(state: int) -> list[Child[int]]:
        asked.append(state)
        return [(token, share, next(numbers)) for token, share in enumerate((0.5, 0.3, 0.1))]

    assert len(grow_on_host(request(), plan, 0, expand))
    assert len(asked) == len(set(asked)) <= most


@pytest.mark.parametrize("plan", [Plan(3), Plan(3, num_nodes=4), Plan(3, tree=Tree((-1, 0)))])
def test_nothing_comes_of_nothing(plan: Plan) -> None:
    assert grow_on_host(request(), plan, 0, lambda state: []) is NO_DRAFT
    unasked = grow_on_host(request(), replace(plan, num_tokens=0), 0, lambda state: [(1, 1.0, 0)])
    assert unasked is NO_DRAFT
