"""Rounds of independent acceptance agree with the formulas, within simultaneous intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from forerun.errors import ConfigError
from forerun.measure.intervals import Estimate
from forerun.simulation.simulator import simulate_independent
from forerun.theory import formulas

NAN = float("nan")


def random_settings() -> Iterator[tuple[float, int, float, np.random.Generator]]:
    random = np.random.default_rng(20)
    for rng in random.spawn(200):
        yield random.uniform(0.02, 0.98), int(random.integers(1, 13)), random.uniform(0.0, 1.0), rng


def test_simulated_and_computed_speedups_agree_on_200_settings() -> None:
    """Within 99 % intervals for all 200 at once (Bonferroni), which a formula off by one leaves."""
    off_by_one = 0
    for alpha, length, ratio, rng in random_settings():
        _, speedup = simulate_independent(alpha, length, ratio, 20_000, rng)
        low, high = speedup.interval(1 - 0.01 / 200)
        assert low <= formulas.speedup(alpha, length, ratio) <= high
        wrong = formulas.expected_accepted(alpha, length) / (ratio * length + 1)
        off_by_one += not low <= wrong <= high
        assert (high - low) / speedup.value < 0.1
    assert off_by_one == 200


def test_dropping_the_last_term_of_the_formula_would_show_too() -> None:
    seen = 0
    for alpha, length, ratio, rng in random_settings():
        _, speedup = simulate_independent(alpha, length, ratio, 20_000, rng)
        low, high = speedup.interval(1 - 5e-5)
        cost = ratio * length + 1
        seen += not low <= formulas.expected_tokens(alpha, length - 1) / cost <= high
    assert seen > 100


def test_the_ends_of_independent_acceptance() -> None:
    rng = np.random.default_rng(0)
    tokens, speedup = simulate_independent(1.0, 5, 0.0, 1000, rng)
    assert tokens == speedup == Estimate(6.0, 0.0)
    assert speedup.interval(1.0) == (6.0, 6.0)
    tokens, speedup = simulate_independent(0.0, 5, 0.2, 1000, rng)
    assert (tokens.value, speedup.value) == (1.0, 0.5)
    tokens, speedup = simulate_independent(0.5, 0, 0.2, 1000, rng)
    assert (tokens.value, speedup.value) == (1.0, 1.0)
    tokens, _ = simulate_independent(0.5, 2, 0.2, 1, rng)
    assert math.isnan(tokens.standard_error)
    tokens, _ = simulate_independent(0.5, 2, 0.2, 1000, np.random.RandomState(0))
    assert tokens.value == pytest.approx(1.75, abs=0.1)


@pytest.mark.parametrize(
    "change",
    [
        {"acceptance": 1.01},
        {"acceptance": NAN},
        {"length": -1},
        {"cost_ratio": -1.0},
        {"rounds": 0},
        {"rounds": 1.5},
    ],
)
def test_independent_rounds_out_of_range_are_refused(change: dict[str, Any]) -> None:
    options = {"acceptance": 0.5, "length": 3, "cost_ratio": 0.1, "rounds": 10, **change}
    with pytest.raises(ConfigError):
        simulate_independent(rng=np.random.default_rng(0), **options)
