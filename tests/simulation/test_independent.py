"""Rounds of independent acceptance agree with the formulas, within simultaneous intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from forerun.errors import ConfigError
from forerun.measure.intervals import Estimate
from forerun.simulation.independent import simulate_independent
from forerun.theory import formulas
from forerun.theory.adaptive import AdaptiveLength, AdaptiveLimits

NAN = float("nan")


def random_settings() -> Iterator[tuple[float, int, float, np.random.Generator]]:
    random = np.random.default_rng(20)
    for rng in random.spawn(200):
        yield random.uniform(0.02, 0.98), int(random.integers(1, 13)), random.uniform(0.0, 1.0), rng


def test_simulated_and_computed_speedups_agree_on_200_settings() -> None:
    """Within 99 % intervals for all 200 at once (Bonferroni), which a formula off by one leaves."""
    off_by_one = 0
    for alpha, length, ratio, rng in random_settings():
        result = simulate_independent(alpha, length, ratio, 20_000, rng)
        low, high = result.speedup.interval(1 - 0.01 / 200)
        assert low <= formulas.speedup(alpha, length, ratio) <= high
        wrong = formulas.expected_accepted(alpha, length) / (ratio * length + 1)
        off_by_one += not low <= wrong <= high
        assert (high - low) / result.speedup.value < 0.1
    assert off_by_one == 200


def test_dropping_the_last_term_of_the_formula_would_show_too() -> None:
    seen = 0
    for alpha, length, ratio, rng in random_settings():
        low, high = simulate_independent(alpha, length, ratio, 20_000, rng).speedup.interval(
            1 - 5e-5
        )
        cost = ratio * length + 1
        seen += not low <= formulas.expected_tokens(alpha, length - 1) / cost <= high
    assert seen > 100


def test_the_ends_of_independent_acceptance() -> None:
    rng = np.random.default_rng(0)
    sure = simulate_independent(1.0, 5, 0.0, 1000, rng)
    assert (sure.tokens, sure.speedup) == (Estimate(6.0, 0.0), Estimate(6.0, 0.0))
    assert sure.speedup.interval(1.0) == (6.0, 6.0)
    never = simulate_independent(0.0, 5, 0.2, 1000, rng)
    assert (never.tokens.value, never.speedup.value, never.acceptance_rate) == (1.0, 0.5, 0.0)
    none = simulate_independent(0.5, 0, 0.2, 1000, rng)
    assert (none.tokens.value, none.speedup.value, none.mean_length) == (1.0, 1.0, 0.0)
    once = simulate_independent(0.5, 2, 0.2, 1, rng)
    assert math.isnan(once.tokens.standard_error)
    legacy = simulate_independent(0.5, 2, 0.2, 1000, np.random.RandomState(0))
    assert legacy.tokens.value == pytest.approx(1.75, abs=0.1)


def test_the_price_of_checking_counts() -> None:
    result = simulate_independent(
        1.0, 3, 0.5, 10, np.random.default_rng(0), verification_cost=lambda tokens: tokens / 2
    )
    assert result.speedup.value == pytest.approx(4 / (1.5 + 2.0))


def test_an_adaptive_length_in_independent_rounds() -> None:
    rng = np.random.default_rng(0)
    rule = AdaptiveLength()
    assert simulate_independent(1.0, rule, 0.1, 5000, rng).mean_length == pytest.approx(
        10, abs=0.02
    )
    assert simulate_independent(0.0, rule, 0.1, 5000, rng).mean_length == pytest.approx(2, abs=0.02)
    assert rule == AdaptiveLength()
    still = AdaptiveLength(4, AdaptiveLimits(shortest_draft=4, longest_draft=4))
    result = simulate_independent(0.7, still, 0.1, 40_000, rng)
    low, high = result.speedup.interval(0.9999)
    assert low < formulas.speedup(0.7, 4, 0.1) < high


def test_the_error_of_dependent_rounds_is_what_repetition_shows() -> None:
    runs = [
        simulate_independent(0.75, AdaptiveLength(), 0.1, 1500, rng)
        for rng in np.random.default_rng(0).spawn(150)
    ]
    spread = np.std([run.tokens.value for run in runs], ddof=1)
    stated = np.mean([run.tokens.standard_error for run in runs])
    assert stated == pytest.approx(spread, rel=0.25)


@pytest.mark.parametrize(
    "change",
    [
        {"acceptance": 1.01},
        {"acceptance": NAN},
        {"length": -1},
        {"cost_ratio": -1.0},
        {"rounds": 0},
        {"rounds": 1.5},
        {"verification_cost": lambda tokens: -1.0},
    ],
)
def test_independent_rounds_out_of_range_are_refused(change: dict[str, Any]) -> None:
    options = {"acceptance": 0.5, "length": 3, "cost_ratio": 0.1, "rounds": 10, **change}
    with pytest.raises(ConfigError):
        simulate_independent(rng=np.random.default_rng(0), **options)
