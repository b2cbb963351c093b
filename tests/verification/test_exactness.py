"""The rules that ship, enumerated: whole completed sequences follow the target to 1e-12."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from forerun.core import Draft, SparseProbs, Tree
from forerun.testing.enumeration import (
    RandomRows,
    by_decision,
    deviation,
    drawn_drafts,
    emitted_distribution,
    ends_of,
    target_distribution,
    target_rows,
)
from forerun.testing.verifier_check import CHAINS, TREES
from forerun.verification import token, traversal
from forerun.verification.decision import Decision, acceptance
from forerun.verification.traversal import BlockRule
from tests.helpers import block_reference
from tests.helpers import traversal_reference as reference

pytestmark = pytest.mark.usefixtures("form")

Decide = Callable[[Draft, Tensor], Decision]

BLOCK = BlockRule()
RULES = {"token": token.decide, "block": BLOCK.decide, "traversal": traversal.decide}
# Of siblings, none carries a larger subtree than those before it.
DEEPER_FIRST = [*CHAINS, (-1, -1), (-1, -1, 0), (-1, -1, 0, 0), (-1, 0, 0, 1)]


@pytest.mark.parametrize("decide", [token.decide, BLOCK.decide], ids=["token", "block"])
@pytest.mark.parametrize("vocab_size", [3, 4])
@pytest.mark.parametrize("parents", CHAINS, ids=str)
def test_drawn_chains(decide: Decide, vocab_size: int, parents: tuple[int, ...]) -> None:
    length = len(parents) + 1
    for seed in range(6):
        target, draft = RandomRows(vocab_size, seed), RandomRows(vocab_size, 100 + seed)
        ours = emitted_distribution(
            by_decision(decide), target, drawn_drafts(draft, parents, True), length
        )
        assert deviation(ours, target_distribution(target, length)) < 1e-12


@pytest.mark.parametrize("replacement", [False, True], ids=["without", "with"])
@pytest.mark.parametrize("parents", TREES, ids=str)
@pytest.mark.parametrize("decide", [token.decide, traversal.decide], ids=["token", "traversal"])
def test_drawn_trees(decide: Decide, parents: tuple[int, ...], replacement: bool) -> None:
    length = Tree(parents).depth + 1
    for seed in range(2):
        target, draft = RandomRows(3, seed), RandomRows(3, 100 + seed, zeros=0.0)
        drafts = drawn_drafts(draft, parents, replacement)
        ours = emitted_distribution(by_decision(decide), target, drafts, length)
        assert deviation(ours, target_distribution(target, length)) < 1e-12


@pytest.mark.parametrize("parents", [*CHAINS, *TREES], ids=str)
def test_point_masses(parents: tuple[int, ...]) -> None:
    """Any fixed tree is exact, also one that repeats a token among siblings."""
    length = Tree(parents).depth + 1
    for seed in range(8):
        random = np.random.default_rng(seed)
        tokens = tuple(random.integers(4, size=len(parents)).tolist())
        target = RandomRows(4, seed)
        ours = emitted_distribution(
            by_decision(token.decide), target, iter([(1.0, Draft(Tree(parents), tokens))]), length
        )
        assert deviation(ours, target_distribution(target, length)) < 1e-12


def test_identical_models_accept_everything() -> None:
    target = RandomRows(4, 1)
    for _, draft in drawn_drafts(target, (-1, 0, 1), True):
        for decide in RULES.values():
            decision = decide(draft, target_rows(target, draft))
            ends = ends_of(decision, len(draft))
            assert ends[-1] == pytest.approx(1.0, abs=1e-12)
            assert torch.isfinite(decision.emit).all()


def mean_accepted(decide: Decide, seed: int, parents: tuple[int, ...], replacement: bool) -> float:
    """Tokens that a rule accepts of a draft on average, over everything that can be drawn."""
    target, draft = RandomRows(3, seed), RandomRows(3, 100 + seed)
    total = 0.0
    for probability, one in drawn_drafts(draft, parents, replacement):
        ends = ends_of(decide(one, target_rows(target, one)), len(one))
        total += probability * float(ends @ [0, *(depth + 1 for depth in one.tree.depths)])
    return total


def test_block_never_accepts_less_than_token() -> None:
    """Sun et al., theorem 2; and strictly more somewhere."""
    gains = [
        mean_accepted(BLOCK.decide, seed, (-1, 0, 1), True)
        - mean_accepted(token.decide, seed, (-1, 0, 1), True)
        for seed in range(10)
    ]
    assert min(gains) > -1e-12
    assert max(gains) > 1e-3


@pytest.mark.parametrize("replacement", [False, True], ids=["without", "with"])
@pytest.mark.parametrize("parents", DEEPER_FIRST, ids=str)
def test_traversal_never_accepts_less_than_token_where_deeper_branches_come_first(
    parents: tuple[int, ...], replacement: bool
) -> None:
    """And strictly more somewhere, unless all nodes are children of the root."""
    gains = [
        mean_accepted(traversal.decide, seed, parents, replacement)
        - mean_accepted(token.decide, seed, parents, replacement)
        for seed in range(6)
    ]
    assert min(gains) > -1e-12
    assert (max(gains) > 1e-3) == (Tree(parents).depth > 1)


@pytest.mark.parametrize("parents", [*CHAINS, *TREES], ids=str)
def test_traversal_decides_as_its_reference(parents: tuple[int, ...]) -> None:
    for seed in range(3):
        target, draft = RandomRows(3, seed), RandomRows(3, 100 + seed, zeros=0.1)
        for _, one in drawn_drafts(draft, parents, seed % 2 == 0):
            probs = target_rows(target, one)
            assert isinstance(one.probs, Tensor)
            ours = traversal.decide(one, probs)
            theirs = reference.decide(
                one.token_ids, one.tree.parents, probs.numpy(), one.probs.numpy()
            )
            assert (ours.on_accept, ours.on_reject) == (theirs.on_accept, theirs.on_reject)
            assert ours.start == theirs.start
            np.testing.assert_allclose(ours.accept.numpy(), theirs.accept, rtol=0, atol=1e-14)
            np.testing.assert_allclose(ours.emit.numpy(), theirs.emit, rtol=0, atol=1e-14)


@pytest.mark.parametrize("parents", CHAINS, ids=str)
def test_block_decides_as_its_paper_has_it(parents: tuple[int, ...]) -> None:
    """Test by test. The rows agree where the path can end."""
    for seed in range(6):
        target = RandomRows(4, seed)
        # Its own draft leaves no residual anywhere.
        drafter = target if seed == 5 else RandomRows(4, 100 + seed)
        for _, one in drawn_drafts(drafter, parents):
            probs = target_rows(target, one)
            ours, theirs = BLOCK.decide(one, probs), block_reference.decide(one, probs)
            assert (ours.on_accept, ours.on_reject) == (theirs.on_accept, theirs.on_reject)
            assert ours.start == theirs.start
            torch.testing.assert_close(ours.accept, theirs.accept, rtol=0, atol=1e-14)
            reached = ends_of(ours, len(one)) > 0
            torch.testing.assert_close(ours.emit[reached], theirs.emit[reached], rtol=0, atol=1e-12)


@pytest.mark.parametrize("decide", [token.decide, traversal.decide], ids=["token", "traversal"])
def test_what_a_greedy_target_takes_of_a_drawn_tree(decide: Decide) -> None:
    """Its most likely tokens, as far as they were drawn, and nothing else."""

    class Greedy(RandomRows):
        def row(self, prefix: tuple[int, ...]) -> np.ndarray:
            return np.eye(self.vocab_size)[super().row(prefix).argmax()]

    target = Greedy(3, 4, zeros=0.0)
    for _, one in drawn_drafts(RandomRows(3, 104, zeros=0.0), (-1, -1, 0, 0, 1)):
        decision = decide(one, target_rows(target, one))
        end = -1
        for node, parent in enumerate(one.tree.parents):
            likely = target.row(tuple(one.tokens_to(parent))).argmax()
            end = node if parent == end and one.token_ids[node] == likely else end
        assert ends_of(decision, len(one)).tolist() == np.eye(6)[end + 1].tolist()
        emitted = decision.emit[end + 1].numpy()
        np.testing.assert_allclose(emitted, target.row(tuple(one.tokens_to(end))), atol=1e-15)


def test_an_argmax_draft_against_its_softmax_row_is_caught() -> None:
    """The commonest defect of the field: the token was not drawn from the row that is recorded."""
    target, draft = RandomRows(4, 3, zeros=0.0), RandomRows(4, 103, zeros=0.0)
    row = draft.row(())
    wrong = Draft(Tree((-1,)), (int(row.argmax()),), torch.tensor(row)[None])
    ours = emitted_distribution(by_decision(token.decide), target, iter([(1.0, wrong)]), 2)
    assert deviation(ours, target_distribution(target, 2)) > 1e-2


def test_the_target_drawn_once_a_branch_is_caught() -> None:
    """Siblings that are all tested against the whole target row accept too often."""

    def decide(draft: Draft, rows: Tensor) -> Decision:
        right = token.decide(draft, rows)
        q = draft.dense_probs(rows.shape[-1])
        assert q is not None
        accept = [
            acceptance(rows[parent + 1, one], q[node, one])
            for node, (parent, one) in enumerate(
                zip(draft.tree.parents, draft.token_ids, strict=True)
            )
        ]
        return Decision(
            torch.stack(accept), right.on_accept, right.on_reject, right.start, right.emit
        )

    target, draft = RandomRows(4, 3, zeros=0.0), RandomRows(4, 103, zeros=0.0)
    ours = emitted_distribution(
        by_decision(decide), target, drawn_drafts(draft, (-1, -1), False), 2
    )
    assert deviation(ours, target_distribution(target, 2)) > 1e-3


def test_sparse_rows_decide_like_dense_ones() -> None:
    target = RandomRows(4, 5)
    for _, dense in drawn_drafts(RandomRows(4, 105), (-1, 0), True):
        assert isinstance(dense.probs, Tensor)
        values, ids = dense.probs.topk(4)
        sparse = Draft(dense.tree, dense.token_ids, SparseProbs(ids, values))
        for decide in RULES.values():
            ours, theirs = (decide(one, target_rows(target, one)) for one in (sparse, dense))
            torch.testing.assert_close(ours.accept, theirs.accept)
            torch.testing.assert_close(ours.emit, theirs.emit)


@pytest.mark.parametrize("rule", RULES)
def test_float32_stays_within_1e_6(rule: str) -> None:
    target, draft = RandomRows(4, 2), RandomRows(4, 102)

    def decide(one: Draft, rows: Tensor) -> Decision:
        assert isinstance(one.probs, Tensor)
        single = Draft(one.tree, one.token_ids, one.probs.float())
        return RULES[rule](single, rows.float())

    for parents in [(-1, 0)] if rule == "block" else [(-1, 0), (-1, -1, 0)]:
        ours = emitted_distribution(
            by_decision(decide), target, drawn_drafts(draft, parents, True), 3
        )
        assert deviation(ours, target_distribution(target, 3)) < 1e-6
