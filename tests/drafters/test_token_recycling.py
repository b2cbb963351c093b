"""Token recycling: what the matrix holds is what the target held likely, and drafts are made of it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from forerun.core import NO_DRAFT, Draft, ForwardOutput, Hints, Plan, Request, Tree, Verdict
from forerun.drafters.base import likeliest
from forerun.drafters.token_recycling import (
    MOST_NAMESPACES,
    NEXT_TOKENS,
    RANK_SHARES,
    TokenRecyclingDrafter,
)
from forerun.params import SamplingParams
from forerun.randomness import Randomness

VOCAB = 20


def request_of(token_ids: list[int], namespace: str = "", stop: int = -1) -> Request:
    return Request(
        0,
        token_ids,
        1,
        SamplingParams(),
        seed=0,
        stop_token_ids=frozenset({stop}),
        hints=Hints(namespace=namespace),
    )


def propose(drafter: TokenRecyclingDrafter, request: Request, plan: Plan) -> Draft:
    return drafter.propose([request], [plan], Randomness())[0]


def observe(
    drafter: TokenRecyclingDrafter,
    request: Request,
    draft: Draft,
    verdict: Verdict,
    logits: Tensor,
) -> None:
    drafter.observe([request], [draft], [verdict], ForwardOutput(logits[None]))


def learn(
    drafter: TokenRecyclingDrafter, token: int, following: list[int], space: str = ""
) -> None:
    """A plain round after `token`: the target finds these tokens the likeliest, in order."""
    logits = torch.full((1, drafter.vocab_size or 0), -50.0)
    logits[0, following] = torch.arange(len(following), 0, -1.0)
    verdict = Verdict.of(NO_DRAFT, -1, following[0])
    observe(drafter, request_of([token, following[0]], space), NO_DRAFT, verdict, logits)


def children(drafter: TokenRecyclingDrafter, token: int) -> tuple[int, ...]:
    wide = Plan(1, tree=Tree((-1,) * NEXT_TOKENS))
    return propose(drafter, request_of([token]), wide).token_ids


@pytest.mark.parametrize("size", [1, 5, 64, 1000, 8192, 8200, 20_001])
def test_the_likeliest(size: int) -> None:
    for seed in range(5):
        logits = torch.randn(3, size, generator=torch.Generator().manual_seed(seed))
        # Also where all of them lie in one block, or at the end.
        logits[1, -10:] += 20.0
        logits[2, : min(size, 10)] += 20.0
        assert torch.equal(likeliest(logits, 8), logits.topk(min(8, size)).indices)


def test_the_rows_of_the_newest_token_and_of_every_node_are_renewed() -> None:
    """Rejected nodes too; and not what pads a row of the batch."""
    drafter = TokenRecyclingDrafter(VOCAB)
    draft = Draft(Tree((-1, -1, 0)), (5, 6, 7))
    verdict = Verdict.of(draft, 1, 9)
    request = request_of([1, 2, *verdict.token_ids])
    logits = torch.randn(2, 6, VOCAB, generator=torch.Generator().manual_seed(0))
    other = request_of([3, 4])
    drafter.observe(
        [other, request],
        [NO_DRAFT, draft],
        [Verdict.of(NO_DRAFT, -1, 4), verdict],
        ForwardOutput(logits),
    )
    expected = {2: logits[1, 0], 5: logits[1, 1], 6: logits[1, 2], 7: logits[1, 3], 3: logits[0, 0]}
    for token in range(VOCAB):
        row = expected.get(token)
        wanted = () if row is None else tuple(row.topk(NEXT_TOKENS).indices.tolist())
        assert children(drafter, token) == wanted
    learn(drafter, 5, [*range(10, 18)])
    assert children(drafter, 5) == tuple(range(10, 18))


def test_cold_it_proposes_nothing() -> None:
    drafter = TokenRecyclingDrafter(VOCAB)
    for plan in (Plan(4), Plan(4, num_nodes=9), Plan(4, tree=Tree((-1, 0)))):
        assert propose(drafter, request_of([3]), plan) is NO_DRAFT
    assert drafter.confidence(request_of([3])) == 0.0
    learn(drafter, 3, [4])
    assert drafter.confidence(request_of([3])) > 0.0
    # What follows 4 is not known.
    assert propose(drafter, request_of([3]), Plan(4)).token_ids == (4,)


def test_a_request_that_failed_teaches_nothing() -> None:
    drafter = TokenRecyclingDrafter(VOCAB)
    nothing = Verdict((), (), ())
    observe(drafter, request_of([1, 2]), NO_DRAFT, nothing, torch.full((1, VOCAB), torch.nan))
    drafter.observe([request_of([2])], [NO_DRAFT], [nothing], ForwardOutput(None))
    assert children(drafter, 2) == ()


@given(st.integers(1, 40), st.integers(1, 5))
def test_a_tree_takes_the_most_probable_ranks(num_nodes: int, depth: int) -> None:
    drafter = TokenRecyclingDrafter(VOCAB)
    order = {token: [(token * 3 + rank * 7) % VOCAB for rank in range(8)] for token in range(VOCAB)}
    for token, following in order.items():
        learn(drafter, token, following)
    tree = propose(drafter, request_of([0]), Plan(depth, num_nodes=num_nodes))
    chain = propose(drafter, request_of([0]), Plan(depth))
    assert chain.token_ids == tuple(_follow(order, [0] * depth))
    ranks = [
        [order[before].index(token) for before, token in zip([0, *path], path, strict=False)]
        for path in map(tree.tokens_to, range(len(tree)))
    ]
    least = min(_product(path) for path in ranks)
    assert len(tree) == min(num_nodes, sum(8**level for level in range(1, depth + 1)))
    assert tree.tree.depth <= depth
    missing = [[*path, 0] for path in [[], *ranks] if len(path) < depth and [*path, 0] not in ranks]
    assert all(_product(path) <= least + 1e-12 for path in missing)


def _follow(order: dict[int, list[int]], ranks: list[int]) -> list[int]:
    tokens = [0]
    for rank in ranks:
        tokens.append(order[tokens[-1]][rank])
    return tokens[1:]


def _product(ranks: list[int]) -> float:
    product = 1.0
    for rank in ranks:
        product *= RANK_SHARES[rank]
    return product


def test_nothing_follows_a_stop_token() -> None:
    drafter = TokenRecyclingDrafter(VOCAB)
    learn(drafter, 1, [2])
    learn(drafter, 2, [3])
    assert propose(drafter, request_of([1], stop=2), Plan(4)).token_ids == (2,)
    tree = propose(drafter, request_of([1], stop=2), Plan(4, num_nodes=30))
    assert 2 in tree.token_ids
    assert tree.token_ids.index(2) not in tree.tree.parents


def test_a_namespace_never_sees_another() -> None:
    drafter = TokenRecyclingDrafter(VOCAB)
    learn(drafter, 1, [2], "ours")
    assert propose(drafter, request_of([1], "ours"), Plan(1)).token_ids == (2,)
    assert propose(drafter, request_of([1], "theirs"), Plan(1)) is NO_DRAFT
    for number in range(MOST_NAMESPACES):
        learn(drafter, 1, [3], str(number))
    # Too many came after it.
    assert propose(drafter, request_of([1], "ours"), Plan(1)) is NO_DRAFT


def test_more_namespaces_at_once_than_are_kept_otherwise() -> None:
    """As many as there are rows: none pushes another out while both run."""
    rows = MOST_NAMESPACES + 3
    drafter = TokenRecyclingDrafter(VOCAB, rows)
    for number in range(rows):
        learn(drafter, 1, [number % 7 + 2], space=str(number))
    for number in range(rows):
        draft = propose(drafter, request_of([1], str(number)), Plan(1))
        assert draft.token_ids == (number % 7 + 2,)


def test_asking_makes_no_matrix_and_plain_requests_teach_none() -> None:
    drafter = TokenRecyclingDrafter(VOCAB)
    for number in range(50):
        assert not len(propose(drafter, request_of([1], str(number)), Plan(3)))
        assert drafter.confidence(request_of([1], str(number))) == 0.0
    assert not drafter._matrices._kept
    silent = request_of([1, 5])
    silent.speculative = False
    observe(drafter, silent, NO_DRAFT, Verdict.of(NO_DRAFT, -1, 5), torch.zeros(1, VOCAB))
    assert not drafter._matrices._kept
