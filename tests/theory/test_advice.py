"""Advice says what the formulas say, and admits where the rules of thumb do not."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.errors import ConfigError
from forerun.theory import formulas
from forerun.theory.advice import (
    ACCEPTANCE,
    COST_RATIO,
    LONGEST,
    Advice,
    AdvicePoint,
    advise,
    rule_for,
)

SHARES = [0.0, 0.1, 0.25, 0.3, 0.35, 0.45, 0.6, 0.7, 0.8, 0.9, 0.99, 1.0]
RATIOS = [0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.9, 1.5]
CHECKS = [1.0, 1.3, 2.5]
GRID = list(itertools.product(SHARES, RATIOS, CHECKS))

CURVE = {2: 1.02, 4: 1.05, 8: 1.3, 16: 1.9, 32: 3.6, 64: 7.0}


def finding(advice: Advice, about: str) -> AdvicePoint:
    [one] = [one for one in advice.findings if one.about == about]
    return one


def test_the_best_length_is_that_of_the_formulas() -> None:
    for alpha, ratio, checking in GRID:
        advice = advise(alpha, ratio, verification_cost=checking)
        lengths = np.arange(1, LONGEST + 1)
        gains = formulas.speedup(alpha, lengths, ratio, verification_cost=checking)
        assert advice.speedup == pytest.approx(np.max(gains))
        best = formulas.optimal_length(alpha, ratio, LONGEST, verification_cost=checking)
        assert bool(best) == advice.gains
        if best:
            again = formulas.speedup(alpha, advice.length, ratio, verification_cost=checking)
            assert again == pytest.approx(np.max(gains))


def test_a_computed_loss_is_never_called_a_win() -> None:
    """Nor a win a loss, whatever the rules of thumb say."""
    for alpha, ratio, checking in GRID:
        advice = advise(alpha, ratio, verification_cost=checking)
        text = finding(advice, "speed-up").text
        assert text.startswith(("Gains", "Hardly")) == (advice.speedup > 1.0) == advice.gains
        assert text.endswith("Decode plainly.") == (advice.speedup <= 1.0)
        assert any(one.about == "change" for one in advice.findings) != advice.gains


def test_a_rule_agrees_where_its_promise_is_kept() -> None:
    for alpha, ratio, checking in GRID:
        advice = advise(alpha, ratio, verification_cost=checking)
        rule, one = rule_for(COST_RATIO, ratio), finding(advice, "cost ratio")
        assert rule.low <= ratio < rule.high
        assert rule.words in one.text
        assert one.agrees is rule.allows(advice.speedup)
        assert (one.agrees is False) == ("wrong here" in one.text)
        accepted = finding(advice, "acceptance")
        assert accepted.agrees is not None
        assert ("that is right" in accepted.text) == accepted.agrees


@pytest.mark.parametrize(
    ("alpha", "ratio", "agrees"),
    [
        (0.8, 0.1, False),  # 2.47, not "3 x and more"
        (0.8, 0.05, True),  # 3.09
        (0.25, 0.05, False),  # gains 1.19 where it "hurts"
        (0.25, 0.3, True),
        (0.5, 0.1, True),
        (0.65, 0.6, False),  # "substantial" is 1.03
    ],
)
def test_where_the_rule_of_thumb_for_acceptance_is_wrong(
    alpha: float, ratio: float, agrees: bool
) -> None:
    assert finding(advise(alpha, ratio), "acceptance").agrees is agrees


def test_what_would_have_to_change_would_change_it() -> None:
    """A little beyond each threshold that is named there is a gain, a little before it none."""
    losing = [case for case in GRID if not advise(*case[:2], verification_cost=case[2]).gains][::3]
    assert losing
    for alpha, ratio, checking in losing:
        text = finding(advise(alpha, ratio, verification_cost=checking), "change").text
        for words, change in (("acceptance above ", 0.02), ("cost ratio below ", -0.02)):
            if words not in text:
                continue
            limit = float(text.split(words)[1][:4])
            for step, gains in ((change, True), (-change, False)):
                moved = min(1.0, max(0.0, limit + step))
                if words.startswith("acceptance"):
                    advice = advise(moved, ratio, verification_cost=checking)
                elif moved > 0.0:
                    advice = advise(alpha, moved, verification_cost=checking)
                else:
                    continue
                assert advice.gains == gains or moved in (0.0, 1.0)


def test_one_share_at_all_positions_is_one_share() -> None:
    for alpha in SHARES:
        by_position = advise([alpha] * 6, 0.1)
        alike = advise(alpha, 0.1, longest=6)
        assert by_position.speedup == pytest.approx(alike.speedup)
        assert by_position.length == alike.length


def test_a_position_at_which_nothing_is_accepted_ends_the_draft() -> None:
    advice = advise([0.9, 0.9, 0.0, 0.9], 0.05)
    assert advice.length == 2
    assert advice.speedup == pytest.approx((1 + 0.9 + 0.81) / 1.1)


def test_the_last_position_that_was_measured_is_no_limit() -> None:
    assert "No longer drafts were measured" in str(advise([0.9, 0.9], 0.05))
    assert "No longer drafts were measured" not in str(advise([0.9, 0.1], 0.05))


@given(
    alpha=st.floats(0.0, 1.0),
    ratio=st.floats(0.0, 2.0),
    steps=st.lists(st.floats(0.0, 0.5), min_size=1, max_size=6),
    batch=st.integers(1, 64),
)
@settings(max_examples=200)
def test_costs_by_tokens_are_those_of_the_batch(
    alpha: float, ratio: float, steps: list[float], batch: int
) -> None:
    """Against an interpolation written in NumPy, where it does not leave what was measured."""
    numbers = [1 << k for k in range(len(steps) + 1)]
    times = list(itertools.accumulate(steps, initial=1.0))
    longest = numbers[-1] // batch - 1
    if longest < 1:
        return
    curve = dict(zip(numbers, times, strict=True))
    advice = advise(alpha, ratio, verification_cost=curve, batch=batch, longest=min(longest, 16))
    lengths = np.arange(1, min(longest, 16) + 1)
    costs = np.interp(batch * (lengths + 1), numbers, times) / np.interp(batch, numbers, times)
    gains = formulas.speedup(alpha, lengths, ratio, verification_cost=costs)
    assert advice.speedup == pytest.approx(np.max(gains))


def test_a_larger_batch_gains_less_where_tokens_cost() -> None:
    gains = [advise(0.8, 0.1, verification_cost=CURVE, batch=b).speedup for b in (1, 4, 16, 64)]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 1.0 > gains[-1]
    crowded = finding(advise(0.8, 0.1, verification_cost=CURVE, batch=16), "batch")
    assert f"{gains[0]:.2f} x" in crowded.text
    assert f"{gains[2]:.2f} x" in crowded.text


def test_beyond_the_points_more_tokens_cost_no_less() -> None:
    """A noisy last point does not make long drafts free."""
    falling = advise(1.0, 0.0, verification_cost={1: 1.0, 4: 1.2, 8: 1.1}, longest=64)
    assert falling.speedup == pytest.approx(65 / 1.1)


def test_free_checking_is_not_spoken_of() -> None:
    assert all(one.about != "checking" for one in advise(0.8, 0.1).findings)
    assert (
        "1.30 plain forwards" in finding(advise(0.8, 0.1, verification_cost=1.3), "checking").text
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {"acceptance": 1.2, "cost_ratio": 0.1},
        {"acceptance": [], "cost_ratio": 0.1},
        {"acceptance": [0.5, -0.1], "cost_ratio": 0.1},
        {"acceptance": float("nan"), "cost_ratio": 0.1},
        {"acceptance": 0.5, "cost_ratio": -0.1},
        {"acceptance": 0.5, "cost_ratio": float("inf")},
        {"acceptance": 0.5, "cost_ratio": 0.1, "batch": 0},
        {"acceptance": 0.5, "cost_ratio": 0.1, "longest": 0},
        {"acceptance": 0.5, "cost_ratio": 0.1, "verification_cost": 0.0},
        {"acceptance": 0.5, "cost_ratio": 0.1, "verification_cost": {1: 1.0}},
        {"acceptance": 0.5, "cost_ratio": 0.1, "verification_cost": {2: float("nan")}},
        {"acceptance": 0.5, "cost_ratio": 0.1, "verification_cost": {0: 1.0, 2: 1.0}},
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        advise(**arguments)


@pytest.mark.parametrize("rules", [ACCEPTANCE, COST_RATIO])
def test_the_ranges_of_a_rule_leave_no_gap(rules: Any) -> None:
    assert rules[0].low == 0.0
    assert all(left.high == right.low for left, right in itertools.pairwise(rules))
    assert rule_for(rules, 1e12) is rules[-1]


def test_it_does_without_torch() -> None:
    code = "import sys, forerun.theory.advice; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
