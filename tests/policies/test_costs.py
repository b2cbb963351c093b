"""What drafts cost: computed where a drafter says what it reads, learned from drafts elsewhere."""

from __future__ import annotations

import pytest

from forerun.policies.costs import LiveCosts

NAME, PLAIN = "self_sparse", 0.01
SHARE = 0.4 * PLAIN


def timed(costs: LiveCosts, share: float, *seconds: float) -> float:
    """What a drafted token costs, in seconds, after drafts of two that took these."""
    costs.draft(NAME, False, 1, share)
    for each in seconds:
        costs.observe_draft(NAME, False, 1, 2, 0, each / share)
    return costs.draft(NAME, False, 1, share).first


def test_a_first_draft_runs_cold_and_is_not_believed() -> None:
    assert timed(LiveCosts(), SHARE) == pytest.approx(SHARE)
    assert timed(LiveCosts(), SHARE, 8 * SHARE) == pytest.approx(SHARE)
    assert timed(LiveCosts(), SHARE, *[8 * SHARE] * 40) > 3 * SHARE


def test_what_can_be_computed_is_not_kept_from_run_to_run() -> None:
    costs = LiveCosts()
    timed(costs, SHARE, *[8 * SHARE] * 9)
    assert costs.as_dict() == {}
    costs.restore({NAME: [3.9, 0.0, None]})
    assert costs.draft(NAME, False, 1).per_token == 3.9
    assert timed(costs, SHARE) == pytest.approx(SHARE)
