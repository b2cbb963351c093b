"""What drafts cost: computed where a drafter says what it reads, learned from drafts elsewhere."""

from __future__ import annotations

import math
import random

import pytest

from forerun.costs.table import CostTable
from forerun.policies.auto import COUNTED, TIMED_AFTER
from forerun.policies.costs import LiveCosts

NAME, PLAIN = "self_sparse", 0.01
SHARE = 0.4 * PLAIN


def timed(costs: LiveCosts, share: float, *seconds: float) -> float:
    """What a drafted token costs, in seconds, after drafts of two that took these."""
    costs.draft(NAME, False, 1, share)
    for each in seconds:
        costs.observe_draft(NAME, False, 1, 2, 0, [each / share])
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


def flat(most: int = 8) -> LiveCosts:
    """A table by which drafted tokens cost nothing."""
    return LiveCosts(CostTable.from_rows((n, 1, 0, 1.0) for n in (1, 2, most)), most)


@pytest.mark.parametrize("batch_size", [1, 4])
def test_what_tokens_take_is_not_taken_for_a_slower_machine(batch_size: int) -> None:
    """Where a table knows of no rise, and all rounds draft as far."""
    table = CostTable.from_rows((n, b, 0, 1.0) for n in (1, 2, 8) for b in (1, 4))
    costs, draws = LiveCosts(table, 8), random.Random(0)
    for _ in range(200):
        costs.observe(batch_size, 4 * batch_size, 1.4 * draws.uniform(0.9, 1.1))
    assert costs.plain_seconds(batch_size) == pytest.approx(1.0, rel=0.1)
    assert costs.speed * costs.curve(batch_size).at(4 * batch_size) == pytest.approx(1.4, rel=0.05)
    assert costs.speed * costs.curve(batch_size).added(2 * batch_size) == pytest.approx(
        0.2, abs=0.1
    )


@pytest.mark.parametrize("factor", [0.6, 1.7])
def test_another_speed_is_found_by_the_plain_rounds_between_drafts(factor: float) -> None:
    """As a policy times them: of all rounds few are plain."""
    costs = flat()
    for number in range(10 * TIMED_AFTER):
        if number % TIMED_AFTER == 0:
            costs.observe(1, 0, factor, COUNTED)
        else:
            costs.observe(1, 4, 1.2 * factor)
    assert costs.plain_seconds(1) == pytest.approx(factor, rel=0.1)


def test_a_timed_round_says_as_much_as_several_of_others() -> None:
    """As rare as it is, one brings most of a change by a quarter."""
    costs = flat()
    costs.observe(1, 0, 1.25, COUNTED)
    assert 1.15 < costs.plain_seconds(1) < 1.25


def test_one_length_for_long_leaves_what_the_table_says_of_others() -> None:
    costs = LiveCosts(CostTable.from_rows((n, 1, 0, 1.0 + 0.02 * n * n) for n in range(1, 18)), 16)
    before = costs.curve(1).at(12)
    for _ in range(20_000):
        costs.observe(1, 4, costs.curve(1).at(4))
    costs.observe(1, 8, 1.15 * costs.speed * costs.curve(1).at(8))
    for _ in range(40):
        costs.observe(1, 4, costs.curve(1).at(4))
    assert costs.curve(1).at(12) == pytest.approx(before, rel=0.15)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 0.0, 1e9])
def test_times_that_no_round_takes_teach_nothing(seconds: float) -> None:
    costs = flat()
    for extra in (0, 4):
        costs.observe(1, extra, seconds)
    assert costs.plain_seconds(1) == 1.0
    assert costs.curve(1).at(4) == flat().curve(1).at(4)


def test_drafts_together_teach_what_one_after_the_other_does() -> None:
    """An interruption among them, too."""
    seconds = [0.2, 0.25, 0.2, 5.0]
    apart, together = flat(), flat()
    for costs in (apart, together):
        costs.measured(NAME, 0.05, 0.05)
        for _ in range(3):
            costs.observe_draft(NAME, False, 1, 3, 0, [0.2])
    one_by_one = [apart.observe_draft(NAME, False, 1, 3, 0, [each])[0] for each in seconds]
    whole, before = together.observe_draft(NAME, False, 1, 3, 0, seconds)
    assert before == 0.0
    assert whole == pytest.approx(sum(one_by_one), rel=0.1)
    times = (costs.draft(NAME, False, 1) for costs in (apart, together))
    first, second = (each(3) for each in times)
    assert second == pytest.approx(first, rel=0.1)
    # It counts as no more than a few usual drafts.
    assert second < 0.3


def test_a_short_prompt_says_little_of_a_long_one() -> None:
    """Its first draft runs cold, and what it took would forbid every later try."""
    costs = LiveCosts()
    costs.measured("draft", 0.1, 0.2)
    assumed = costs.prefill_seconds("draft", 1000)
    costs.observe_draft("draft", False, 1, 4, 12, [3.0])
    assert costs.prefill_seconds("draft", 1000) < 0.3 * 1000 * 3.0 / 12
    for _ in range(4):
        costs.observe_draft("draft", False, 1, 4, 1000, [50.0])
    assert costs.prefill_seconds("draft", 1000) == pytest.approx(50.0, rel=0.1)
    assert assumed < 50.0
