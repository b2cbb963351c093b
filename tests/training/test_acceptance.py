"""Acceptance on held-out text: siblings give what their enumeration says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from forerun.theory.acceptance import distinct_sibling_acceptance
from forerun.training.objective import AcceptanceTable, sibling_shares

DRAWS = 20_000


def test_siblings_are_accepted_as_their_enumeration_says() -> None:
    """The last token lies outside the draft's vocabulary."""
    generator = torch.Generator().manual_seed(0)
    target = torch.tensor([0.1, 0.05, 0.3, 0.25, 0.3])
    draft = torch.tensor([0.5, 0.2, 0.2, 0.1, 0.0])
    shares = sibling_shares(
        target[None, :4].expand(DRAWS, -1), draft[None, :4].expand(DRAWS, -1), 3, generator
    )
    expected = distinct_sibling_acceptance(target.double().numpy(), draft.double().numpy(), 3)
    np.testing.assert_allclose(shares.mean(0).numpy(), expected, atol=0.006)
    # The first is known without a draw.
    assert shares[:, 0].std() == pytest.approx(0, abs=1e-6)


def test_no_more_siblings_than_tokens() -> None:
    row = torch.tensor([[0.5, 0.5]])
    shares = sibling_shares(row, row, 4, torch.Generator().manual_seed(0))
    assert shares.tolist() == [[1.0, 0.0, 0.0, 0.0]]


def test_ranks_count_as_often_as_drafts_come_to_them() -> None:
    table = AcceptanceTable()
    assert table.by_rank == []
    shares = torch.tensor([[0.8, 0.1], [0.4, 0.3], [0.6, 0.2]])
    table.add_ranks(3, torch.tensor([0, 1, 1]), shares, torch.tensor([1.0, 0.75, 0.25]))
    # No draft came to the third token.
    assert table.by_rank == [[0.8, 0.1], [0.45, 0.275]]
