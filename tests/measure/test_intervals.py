"""Intervals cover the true value as often as they say, and known cases by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from forerun.errors import ConfigError
from forerun.measure import intervals
from forerun.measure.intervals import Estimate, ratio_of_dependent_means, ratio_of_means


def test_intervals_cover_the_true_value() -> None:
    random = np.random.default_rng(3)
    inside = 0
    for _ in range(200):
        values = random.normal(2.0, 1.0, 40)
        interval = intervals.mean(values.tolist())
        inside += interval.low <= 2.0 <= interval.high
    assert 175 <= inside <= 200
    assert intervals.median([5.0] * 4) == intervals.Interval(5.0, 5.0, 5.0)
    ratio = intervals.ratio([1, 2, 3], [2, 4, 6])
    assert ratio is not None
    assert ratio.value == pytest.approx(0.5)
    assert intervals.ratio([1.0], [0.0]) is None


def test_a_bootstrap_interval_is_as_wide_as_the_standard_error_says() -> None:
    values = np.random.default_rng(1).normal(size=400)
    interval = intervals.mean(values)
    width = 2 * 1.96 * values.std() / math.sqrt(400)
    assert interval.high - interval.low == pytest.approx(width, rel=0.1)
    assert interval.low < interval.value < interval.high


def test_intervals_by_hand() -> None:
    estimate = ratio_of_means([1, 2, 3, 4], np.ones(4))
    assert estimate.value == 2.5
    assert estimate.standard_error == pytest.approx(math.sqrt(5 / 3 / 4))
    low, high = estimate.interval(0.95)
    # Student's t for three degrees of freedom, from a table.
    assert high - 2.5 == pytest.approx(3.182446 * estimate.standard_error)
    assert low == pytest.approx(5.0 - high)
    # A ratio that is the same in every round is certain, however the rounds differ.
    assert ratio_of_means([1, 2, 3], [2, 4, 6]) == Estimate(0.5, 0.0)
    assert Estimate(1.0, 2.0).interval(0.95)[1] == pytest.approx(1.0 + 2.0 * 1.959964)
    assert math.isnan(ratio_of_dependent_means([3], [1]).interval()[0])
    # Two batches of two: 3 and 7 around 5, and a t of one degree of freedom.
    two = ratio_of_dependent_means([1, 2, 3, 4], np.ones(4))
    assert two == Estimate(2.5, 1.0)
    assert two.interval(0.95)[1] == pytest.approx(2.5 + 12.706205)
    # Batches that agree by chance don't make rounds that differ certain.
    alike = ratio_of_dependent_means([1, 4, 3, 2], np.ones(4))
    assert alike == Estimate(2.5, estimate.standard_error)
    with pytest.raises(ConfigError):
        estimate.interval(1.5)
