"""The rules that ship, enumerated: whole completed sequences follow the target to 1e-12."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from forerun.core import Draft, SparseProbs
from forerun.testing.laws import (
    RandomRows,
    by_decision,
    depth_of,
    deviation,
    drawn_drafts,
    emitted_law,
    ends_of,
    target_law,
    target_rows,
)
from forerun.testing.verifier_check import CHAINS, TREES
from forerun.verification import block, token
from forerun.verification.decision import Decision

pytestmark = pytest.mark.usefixtures("form")

Decide = Callable[[Draft, Tensor], Decision]


@pytest.mark.parametrize("decide", [token.decide, block.decide], ids=["token", "block"])
@pytest.mark.parametrize("vocab_size", [3, 4])
@pytest.mark.parametrize("parents", CHAINS, ids=str)
def test_drawn_chains(decide: Decide, vocab_size: int, parents: tuple[int, ...]) -> None:
    length = len(parents) + 1
    for seed in range(6):
        target, draft = RandomRows(vocab_size, seed), RandomRows(vocab_size, 100 + seed)
        ours = emitted_law(by_decision(decide), target, drawn_drafts(draft, parents, True), length)
        assert deviation(ours, target_law(target, length)) < 1e-12


@pytest.mark.parametrize("replacement", [False, True], ids=["without", "with"])
@pytest.mark.parametrize("parents", TREES, ids=str)
def test_drawn_trees(parents: tuple[int, ...], replacement: bool) -> None:
    length = depth_of(parents) + 1
    for seed in range(2):
        target, draft = RandomRows(3, seed), RandomRows(3, 100 + seed, zeros=0.0)
        ours = emitted_law(
            by_decision(token.decide), target, drawn_drafts(draft, parents, replacement), length
        )
        assert deviation(ours, target_law(target, length)) < 1e-12


@pytest.mark.parametrize("parents", [*CHAINS, *TREES], ids=str)
def test_point_masses(parents: tuple[int, ...]) -> None:
    """Any fixed tree is exact, also one that repeats a token among siblings."""
    length = depth_of(parents) + 1
    for seed in range(8):
        random = np.random.default_rng(seed)
        tokens = tuple(random.integers(4, size=len(parents)).tolist())
        target = RandomRows(4, seed)
        ours = emitted_law(
            by_decision(token.decide), target, iter([(1.0, Draft(tokens, parents))]), length
        )
        assert deviation(ours, target_law(target, length)) < 1e-12


def test_identical_models_accept_everything() -> None:
    target = RandomRows(4, 1)
    for _, draft in drawn_drafts(target, (-1, 0, 1), True):
        for decide in (token.decide, block.decide):
            decision = decide(draft, target_rows(target, draft))
            ends = ends_of(decision, len(draft))
            assert ends[-1] == pytest.approx(1.0, abs=1e-12)
            assert torch.isfinite(decision.emit).all()


def test_block_never_accepts_less_than_token() -> None:
    """Sun et al., theorem 2; and strictly more somewhere."""
    gains = []
    for seed in range(10):
        target, draft = RandomRows(3, seed), RandomRows(3, 100 + seed)
        accepted = []
        for decide in (token.decide, block.decide):
            total = 0.0
            for probability, one in drawn_drafts(draft, (-1, 0, 1), True):
                decision = decide(one, target_rows(target, one))
                ends = ends_of(decision, len(one))
                total += probability * float(ends @ np.arange(4))
            accepted.append(total)
        gains.append(accepted[1] - accepted[0])
    assert min(gains) > -1e-12
    assert max(gains) > 1e-3


def test_an_argmax_draft_against_its_softmax_row_is_caught() -> None:
    """The commonest defect of the field: the token was not drawn from the row that is recorded."""
    target, draft = RandomRows(4, 3, zeros=0.0), RandomRows(4, 103, zeros=0.0)
    row = draft.row(())
    wrong = Draft((int(row.argmax()),), (-1,), torch.tensor(row)[None])
    ours = emitted_law(by_decision(token.decide), target, iter([(1.0, wrong)]), 2)
    assert deviation(ours, target_law(target, 2)) > 1e-2


def test_the_target_drawn_once_a_branch_is_caught() -> None:
    """Siblings that are all tested against the whole target row accept too often."""

    def decide(draft: Draft, rows: Tensor) -> Decision:
        right = token.decide(draft, rows)
        q = draft.dense_probs(rows.shape[-1])
        assert q is not None
        accept = [
            token.acceptance(rows[parent + 1, one], q[node, one])
            for node, (parent, one) in enumerate(zip(draft.parents, draft.token_ids, strict=True))
        ]
        return Decision(
            torch.stack(accept), right.on_accept, right.on_reject, right.start, right.emit
        )

    target, draft = RandomRows(4, 3, zeros=0.0), RandomRows(4, 103, zeros=0.0)
    ours = emitted_law(by_decision(decide), target, drawn_drafts(draft, (-1, -1), False), 2)
    assert deviation(ours, target_law(target, 2)) > 1e-3


def test_sparse_rows_decide_like_dense_ones() -> None:
    target = RandomRows(4, 5)
    for _, dense in drawn_drafts(RandomRows(4, 105), (-1, 0), True):
        assert isinstance(dense.probs, Tensor)
        values, ids = dense.probs.topk(4)
        sparse = Draft(dense.token_ids, dense.parents, SparseProbs(ids, values))
        for decide in (token.decide, block.decide):
            ours, theirs = (decide(one, target_rows(target, one)) for one in (sparse, dense))
            torch.testing.assert_close(ours.accept, theirs.accept)
            torch.testing.assert_close(ours.emit, theirs.emit)


def test_float32_stays_within_1e_6() -> None:
    target, draft = RandomRows(4, 2), RandomRows(4, 102)

    def decide(one: Draft, rows: Tensor) -> Decision:
        assert isinstance(one.probs, Tensor)
        single = Draft(one.token_ids, one.parents, one.probs.float())
        return token.decide(single, rows.float())

    ours = emitted_law(by_decision(decide), target, drawn_drafts(draft, (-1, 0), True), 3)
    assert deviation(ours, target_law(target, 3)) < 1e-6
