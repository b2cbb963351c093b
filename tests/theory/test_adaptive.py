"""The tutorial's rule for the length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import ConfigError
from forerun.theory.adaptive import AdaptiveLength


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


@pytest.mark.parametrize(
    "options",
    [
        {"shortest": 0},
        {"shortest": 5, "longest": 4},
        {"window": 0},
        {"shrink_below": 0.9, "grow_above": 0.5},
    ],
    ids=str,
)
def test_limits_out_of_order_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        AdaptiveLength(**options)  # type: ignore[arg-type]
