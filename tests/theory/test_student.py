"""Student's t against published tables and its own definition."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from forerun.theory.student import student_quantile


@pytest.mark.parametrize(
    ("degrees", "at_90", "at_95", "at_99"),
    [
        (1, 6.314, 12.706, 63.657),
        (2, 2.920, 4.303, 9.925),
        (3, 2.353, 3.182, 5.841),
        (4, 2.132, 2.776, 4.604),
        (13, 1.771, 2.160, 3.012),
        (30, 1.697, 2.042, 2.750),
        (120, 1.658, 1.980, 2.617),
    ],
)
def test_quantiles_of_the_tables(degrees: int, at_90: float, at_95: float, at_99: float) -> None:
    found = [student_quantile(level, degrees) for level in (0.9, 0.95, 0.99)]
    assert found == pytest.approx([at_90, at_95, at_99], abs=5.1e-4)


@pytest.mark.parametrize("degrees", [1, 2, 5, 6, 31])
def test_the_density_up_to_the_quantile_is_the_level(degrees: int) -> None:
    scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
    scale -= 0.5 * math.log(degrees * math.pi)
    for level in (0.1, 0.8, 0.99):
        t = np.linspace(0.0, student_quantile(level, degrees), 200_001)
        density = np.exp(scale - (degrees + 1) / 2 * np.log1p(t * t / degrees))
        assert 2.0 * np.trapezoid(density, t) == pytest.approx(level, abs=1e-8)


def test_many_degrees_are_nearly_normal() -> None:
    for level in (0.5, 0.95, 0.999):
        sums, corrected = student_quantile(level, 499), student_quantile(level, 500)
        assert corrected == pytest.approx(sums, rel=1e-4)
        normal = NormalDist().inv_cdf(0.5 + 0.5 * level)
        assert student_quantile(level, 10**9) == pytest.approx(normal)
        assert student_quantile(level, math.inf) == normal


def test_the_ends() -> None:
    assert student_quantile(0.0, 3) == pytest.approx(0.0, abs=1e-12)
    assert student_quantile(1.0, 3) == student_quantile(1.0, 10**6) == math.inf
