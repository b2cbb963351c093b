"""Traversal verification by enumeration: exact on drawn trees, block verification on chains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from forerun.core import NO_DRAFT, Draft, Tree
from forerun.errors import ConfigError, DistributionError
from forerun.testing.enumeration import (
    RandomRows,
    Rows,
    by_decision,
    deviation,
    emitted_distribution,
    ends_of,
    target_distribution,
    target_rows,
)
from forerun.theory.acceptance import end_probabilities
from forerun.verification import token
from forerun.verification.decision import Decision
from tests.helpers import block_reference
from tests.helpers import traversal_reference as traversal

Decide = Callable[[Draft, Tensor], Decision]
Shape = Callable[[Draft], int | None]
"""The parent of the next node, given the tree so far; None where the tree is complete."""

CHAINS = [(-1,), (-1, 0), (-1, 0, 1)]
TREES = [(-1, -1), (-1, -1, 0, 0), (-1, -1, -1, 1), (-1, 0, 0, -1), (-1, -1, 0, 1, 1)]
EARLIER_IS_LARGER = [(-1, 0, 0, 1), (-1, 0, 0, -1, 1, 3)]
LATER_IS_LARGER = (-1, 0, 0, 2)

both_ways = pytest.mark.parametrize("replacement", [False, True], ids=["without", "with"])


def decide(draft: Draft, target_probs: Tensor) -> Decision:
    """The reference as a rule."""
    probs = draft.dense_probs(target_probs.shape[-1])
    made = traversal.decide(
        draft.token_ids,
        draft.tree.parents,
        target_probs.numpy(),
        None if probs is None else probs.numpy(),
    )
    assert np.isfinite(made.accept).all()
    assert np.isfinite(made.emit).all()
    return Decision(
        torch.tensor(made.accept),
        made.on_accept,
        made.on_reject,
        made.start,
        torch.tensor(made.emit),
    )


def fixed(parents: tuple[int, ...]) -> Shape:
    return lambda draft: parents[len(draft)] if len(draft) < len(parents) else None


def drawn(rows: Rows, shape: Shape, replacement: bool) -> Iterator[tuple[float, Draft]]:
    """Every tree that can be drawn; one ends where its next node has no token left."""

    def grow(
        draft: Draft, taken: list[np.ndarray], probability: float
    ) -> Iterator[tuple[float, Draft]]:
        parent = shape(draft)
        row = rows.row(tuple(draft.tokens_to(parent))).copy() if parent is not None else np.zeros(1)
        if parent is not None and not replacement:
            row[[draft.token_ids[sibling] for sibling in draft.tree.children(parent)]] = 0.0
        if parent is None or row.sum() <= 0:
            probs = torch.tensor(np.array(taken)) if taken else None
            yield probability, Draft(draft.tree, draft.token_ids, probs)
            return
        row = row / row.sum()
        for one in np.flatnonzero(row):
            larger = Draft(Tree((*draft.tree.parents, parent)), (*draft.token_ids, int(one)))
            yield from grow(larger, [*taken, row], probability * row[one])

    yield from grow(NO_DRAFT, [], 1.0)


def error_of(target: Rows, drafts: Iterator[tuple[float, Draft]], length: int) -> float:
    """The largest error of a probability of a whole completed sequence."""
    law = emitted_distribution(by_decision(decide), target, drafts, length)
    return deviation(law, target_distribution(target, length))


def mean_accepted(
    rule: Decide, target: Rows, drafter: Rows, shape: Shape, replacement: bool
) -> float:
    total = 0.0
    for probability, draft in drawn(drafter, shape, replacement):
        ends = ends_of(rule(draft, target_rows(target, draft)), len(draft))
        total += probability * float(ends @ [0, *(depth + 1 for depth in draft.tree.depths)])
    return total


@both_ways
@pytest.mark.parametrize("zeros", [0.0, 0.3])
@pytest.mark.parametrize("vocab_size", [3, 4])
@pytest.mark.parametrize("parents", [*CHAINS, *TREES], ids=str)
def test_whole_sequences_follow_the_target(
    parents: tuple[int, ...], vocab_size: int, zeros: float, replacement: bool
) -> None:
    for seed in range(2):
        target = RandomRows(vocab_size, seed, zeros)
        drafts = drawn(RandomRows(vocab_size, 100 + seed, zeros), fixed(parents), replacement)
        assert error_of(target, drafts, Tree(parents).depth + 1) < 1e-12


@both_ways
@pytest.mark.parametrize("parents", [*EARLIER_IS_LARGER, LATER_IS_LARGER], ids=str)
def test_deeper_trees(parents: tuple[int, ...], replacement: bool) -> None:
    drafts = drawn(RandomRows(3, 105, 0.0), fixed(parents), replacement)
    assert error_of(RandomRows(3, 5, 0.2), drafts, 4) < 1e-12


def grown_on_the_past(draft: Draft) -> int | None:
    """What is drawn next depends on tokens drawn before, also on those of other branches."""
    tokens = draft.token_ids
    if len(draft) < 2:
        return -1
    if len(draft) == 2:
        return tokens[1] % 2
    return tokens[2] % 2 if len(draft) == 3 and tokens[0] != 1 else None


@both_ways
def test_a_tree_may_grow_on_what_was_drawn_before(replacement: bool) -> None:
    for seed in range(4):
        drafts = drawn(RandomRows(3, 100 + seed, 0.0), grown_on_the_past, replacement)
        assert error_of(RandomRows(3, seed, 0.2), drafts, 3) < 1e-12


def test_offering_a_token_for_its_own_value_is_caught() -> None:
    """Anticipation: the second sibling is dropped unless it turned out to be token 0."""

    def first_alone(draft: Draft) -> Draft:
        assert isinstance(draft.probs, torch.Tensor)
        return Draft.chain(draft.token_ids[:1], draft.probs[:1])

    drafts = (
        (share, one if one.token_ids[1] == 0 else first_alone(one))
        for share, one in drawn(RandomRows(4, 104, 0.0), fixed((-1, -1)), True)
    )
    assert error_of(RandomRows(4, 4, 0.0), drafts, 2) > 1e-2


@pytest.mark.parametrize("zeros", [0.0, 0.3])
@pytest.mark.parametrize("parents", CHAINS, ids=str)
def test_on_a_chain_it_is_block_verification(parents: tuple[int, ...], zeros: float) -> None:
    """Not only the same law: the same tests, in the same order, with the same rows."""
    for seed in range(4):
        target = RandomRows(4, seed, zeros)
        # Its own draft leaves no residual anywhere.
        drafter = target if seed == 3 else RandomRows(4, 100 + seed, zeros)
        for _, draft in drawn(drafter, fixed(parents), True):
            rows = target_rows(target, draft)
            ours, theirs = decide(draft, rows), block_reference.decide(draft, rows)
            assert ours.on_accept == theirs.on_accept
            assert ours.on_reject == theirs.on_reject
            assert ours.start == theirs.start
            torch.testing.assert_close(ours.accept, theirs.accept, rtol=0, atol=1e-14)
            reached = ends_of(ours, len(draft)) > 0
            torch.testing.assert_close(ours.emit[reached], theirs.emit[reached], rtol=0, atol=1e-12)


def gains_over_token(parents: tuple[int, ...], replacement: bool) -> list[float]:
    """Tokens a round that traversal accepts more than the token rule, for several pairs of models."""
    gains = []
    for seed in range(20 if len(parents) < 5 else 6):
        zeros = 0.3 * (seed % 2)
        models = RandomRows(3, seed, zeros), RandomRows(3, 100 + seed, zeros)
        ours, theirs = (
            mean_accepted(rule, *models, fixed(parents), replacement)
            for rule in (decide, token.decide)
        )
        gains.append(ours - theirs)
    return gains


@both_ways
@pytest.mark.parametrize("parents", [*CHAINS, *TREES, *EARLIER_IS_LARGER], ids=str)
def test_it_accepts_no_less_than_the_token_rule(
    parents: tuple[int, ...], replacement: bool
) -> None:
    gains = gains_over_token(parents, replacement)
    assert min(gains) > -1e-12
    if max(parents) >= 0:  # deeper than one token: there is something to gain
        assert max(gains) > 1e-4


@both_ways
def test_it_may_accept_less_where_a_later_sibling_carries_more(replacement: bool) -> None:
    """No theorem for every tree: the first sibling takes what the second would have used longer."""
    assert min(gains_over_token(LATER_IS_LARGER, replacement)) < -1e-3


@pytest.mark.parametrize("parents", [*CHAINS, *TREES], ids=str)
def test_of_point_masses_it_makes_what_the_token_rule_does(parents: tuple[int, ...]) -> None:
    for seed in range(8):
        tokens = np.random.default_rng(seed).integers(4, size=len(parents)).tolist()
        draft = Draft(Tree(parents), tuple(tokens))
        rows = target_rows(RandomRows(4, seed), draft)
        ours, theirs = (ends_of(rule(draft, rows), len(draft)) for rule in (decide, token.decide))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


@both_ways
@pytest.mark.parametrize("parents", [*CHAINS, *TREES, *EARLIER_IS_LARGER, LATER_IS_LARGER], ids=str)
def test_of_identical_models_the_first_leaf_stands(
    parents: tuple[int, ...], replacement: bool
) -> None:
    """Residuals are zero along its whole path, and nothing becomes NaN."""
    target = RandomRows(3, 1, 0.0)
    for _, draft in drawn(target, fixed(parents), replacement):
        decision = decide(draft, target_rows(target, draft))
        assert ends_of(decision, len(draft))[decision.start + 1] == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("parents", [(), *CHAINS, *TREES], ids=str)
def test_a_vocabulary_of_one_token(parents: tuple[int, ...]) -> None:
    count = len(parents)
    ones = np.ones((count + 1, 1))
    decision = traversal.decide((0,) * count, parents, ones, ones[1:])
    first_leaf = max(decision.start, -1)
    assert end_probabilities(*decision[:4], count)[first_leaf + 1] == 1.0
    np.testing.assert_array_equal(decision.emit, ones)


def test_of_models_that_share_no_token_nothing_is_accepted() -> None:
    rows = np.array([[0.5, 0.5, 0, 0]] * 4)
    decision = traversal.decide((2, 3, 2), (-1, -1, 0), rows, rows[:3, ::-1])
    np.testing.assert_array_equal(end_probabilities(*decision[:4], 3), [1, 0, 0, 0])
    np.testing.assert_array_equal(decision.emit[0], rows[0])


@given(st.data())
def test_any_tree_of_any_rows_gives_probabilities(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 4))
    count = data.draw(st.integers(0, 6))
    parents = [data.draw(st.integers(-1, node - 1)) for node in range(count)]
    tokens = [data.draw(st.integers(0, size - 1)) for _ in range(count)]
    entry = st.sampled_from([0.0, 1e-300, 1e-12, 0.2, 1.0, 3.0])

    def some_rows(number: int) -> np.ndarray:
        made = np.array([[data.draw(entry) for _ in range(size)] for _ in range(number)])
        made = made.reshape(number, size)
        made[made.sum(1) == 0] = 1.0
        return made / made.sum(1, keepdims=True)

    decision = traversal.decide(tokens, parents, some_rows(count + 1), some_rows(count))
    assert ((decision.accept >= 0) & (decision.accept <= 1)).all()
    np.testing.assert_allclose(decision.emit.sum(1), 1.0, atol=1e-9)
    assert end_probabilities(*decision[:4], count).sum() == pytest.approx(1.0, abs=1e-9)


HALF = np.array([[0.5, 0.5]])
HALVES = np.repeat(HALF, 2, 0)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (((0,), (0,), HALVES, HALF), ConfigError),
        (((0, 1), (-1,), HALVES, HALF), ConfigError),
        (((2,), (-1,), HALVES, HALF), ConfigError),
        (((0,), (-1,), HALF, HALF), DistributionError),
        (((0,), (-1,), HALVES, HALVES), DistributionError),
        (((0,), (-1,), HALVES, np.array([[0.2, 0.3, 0.5]])), DistributionError),
        (((0,), (-1,), np.full((2, 2), 0.4), HALF), DistributionError),
        (((0,), (-1,), HALVES, np.array([[np.nan, 1.0]])), DistributionError),
        (((0,), (-1,), HALVES, np.array([[1.5, -0.5]])), DistributionError),
    ],
    ids=[
        "own_parent",
        "parents",
        "id",
        "target_rows",
        "draft_rows",
        "vocabulary",
        "sum",
        "nan",
        "negative",
    ],
)
def test_what_is_no_draft_is_refused(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        traversal.decide(*arguments)
