"""The tutorial's rule for the length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import ConfigError
from forerun.theory.adaptive import AdaptiveLength, AdaptiveLimits


def test_nothing_changes_before_the_window_is_full() -> None:
    rule = AdaptiveLength(4)
    assert [rule.observe(4, 4) for _ in range(6)] == [4, 4, 4, 4, 5, 6]


def test_it_shrinks_below_half_and_stays_between() -> None:
    rule = AdaptiveLength(4)
    assert [rule.observe(4, 1) for _ in range(8)] == [4, 4, 4, 4, 3, 2, 2, 2]
    middling = AdaptiveLength(4)
    assert {middling.observe(10, 6) for _ in range(20)} == {4}


def test_the_thresholds_themselves_change_nothing() -> None:
    for accepted in (8, 5):
        rule = AdaptiveLength(4)
        assert {rule.observe(10, accepted) for _ in range(20)} == {4}


@given(st.lists(st.integers(0, 10), max_size=60), st.integers(1, 30))
def test_the_length_is_always_within_its_limits(accepted: list[int], start: int) -> None:
    rule = AdaptiveLength(start)
    for count in accepted:
        before = rule.length
        after = rule.observe(before, min(count, before))
        assert 2 <= after <= 10
        assert abs(after - before) <= 1


def test_limits_of_ones_own() -> None:
    limits = AdaptiveLimits(
        shortest_draft=3, longest_draft=5, acceptance_window=1, grow_above=0.5, shrink_below=0.5
    )
    rule = AdaptiveLength(4, limits)
    assert [rule.observe(4, accepted) for accepted in (3, 3, 2, 1, 1, 1)] == [5, 5, 5, 4, 3, 3]


@pytest.mark.parametrize(
    "options",
    [
        {"shortest_draft": 0},
        {"shortest_draft": 5, "longest_draft": 4},
        {"acceptance_window": 0},
        {"shrink_below": 0.9, "grow_above": 0.5},
    ],
    ids=str,
)
def test_limits_out_of_order_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        AdaptiveLimits(**options)  # type: ignore[arg-type]
