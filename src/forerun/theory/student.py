"""Student's t: how far a mean is from its estimate when its error is an estimate too."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

from forerun.theory.goodness_of_fit import bisect

# From here on the normal quantile and its first correction are right to a ten-thousandth.
_MANY = 500


@lru_cache(maxsize=256)
def student_quantile(level: float, degrees: float) -> float:
    """t with P(|T| <= t) = `level`, for a whole number of degrees of freedom above zero, or inf."""
    if level == 1.0:
        return math.inf
    if degrees >= _MANY:
        z = NormalDist().inv_cdf(0.5 + 0.5 * level)
        return z + (z**3 + z) / (4.0 * degrees)
    angle = bisect(lambda theta: _within(theta, int(degrees)) - level, 0.0, 0.5 * math.pi)
    return math.sqrt(degrees) * math.tan(angle)


def _within(theta: float, degrees: int) -> float:
    """P(|T| <= sqrt(degrees) tan(theta)): Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    odd = degrees % 2
    cosine = math.cos(theta)
    term = cosine if odd else 1.0
    total = term if degrees > 1 else 0.0
    for index in range(2 + odd, degrees, 2):
        term *= cosine * cosine * (index - 1) / index
        total += term
    total *= math.sin(theta)
    return (theta + total) * 2.0 / math.pi if odd else total
