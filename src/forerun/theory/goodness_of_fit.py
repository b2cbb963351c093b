"""Do outcomes follow laws that are known one by one? Score tests, their level and their power.

Every outcome has its own law: a token its row, the end of a walk its probabilities. A score maps
an outcome to a few numbers whose mean under its law is zero and whose covariance is known; a sum
of scores is then judged by chi-square. With the law conditioned on everything before, the scores
are martingale differences: outcomes of one text may be pooled although they depend on each other.

Scores of places: the randomized probability integral transform turns an outcome into a number that
is uniform under its law (Rosenblatt, Ann. Math. Statist. 23, 1952; for discrete laws Brockwell,
Statist. Probab. Lett. 77, 2007); Neyman's smooth test asks whether it is (Skand. Aktuar. 20, 1937).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.polynomial import legendre
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Polynomials of a smooth test: location, spread, skewness, tails.
SMOOTH_DEGREES = 4
# Directions in which a sum of scores varies by less are too discrete to be judged by chi-square;
# for smooth scores that is a number of outcomes.
FEWEST = 25.0


def mass_before(rows: Floats, chosen: Ints, keys: Floats | None = None) -> tuple[Floats, Floats]:
    """The probability of what stands before the chosen outcome, and its own, both [N].

    Args:
        rows: laws, [N, V].
        chosen: outcomes, [N].
        keys: what orders the outcomes, least first, ties by index, [N, V]; None orders by index.
    """
    at = np.arange(len(rows))
    own = rows[at, chosen]
    index = np.arange(rows.shape[1])
    earlier = index[None] < chosen[:, None]
    if keys is not None:
        key = keys[at, chosen][:, None]
        earlier = (keys < key) | ((keys == key) & earlier)
    return np.where(earlier, rows, 0.0).sum(1), own


def transform(low: Floats, own: Floats, uniforms: Floats) -> Floats:
    """The randomized probability integral transform [N], uniform where outcomes follow their laws."""
    return np.clip(low + uniforms * own, 0.0, 1.0)


def smooth_scores(places: Floats, degrees: int = SMOOTH_DEGREES) -> Floats:
    """Legendre polynomials of degree 1 and up at places in [0, 1], orthonormal there, [N, degrees]."""
    scale = np.sqrt(2.0 * np.arange(1, degrees + 1) + 1.0)
    values: Floats = legendre.legvander(2.0 * places - 1.0, degrees)[:, 1:] * scale
    return values


def mean_smooth_scores(
    rows: Floats, others: Floats, keys: Floats, degrees: int = SMOOTH_DEGREES
) -> Floats:
    """The mean smooth score [degrees] where outcomes follow `others` and are judged by `rows`.

    An outcome lies anywhere in its stretch of [0, 1] alike, so the polynomials are averaged over it.

    Args:
        rows, others: laws, [N, V]; `others` has no outcome that `rows` excludes.
        keys: what orders the outcomes, [N, V].
    """
    order = np.argsort(keys, axis=1, kind="stable")
    rows, others = np.take_along_axis(rows, order, 1), np.take_along_axis(others, order, 1)
    edges = np.concatenate([np.zeros((len(rows), 1)), np.cumsum(rows, 1)], 1).clip(0.0, 1.0)
    density = np.divide(others, rows, out=np.zeros_like(rows), where=rows > 0)
    means = []
    for degree in range(1, degrees + 1):
        coefficients = np.zeros(degree + 1)
        coefficients[degree] = math.sqrt(2 * degree + 1) / 2  # dx = 2 du
        integral = legendre.legval(2.0 * edges - 1.0, legendre.legint(coefficients))
        means.append((density * np.diff(integral, axis=1)).sum(1).mean())
    return np.array(means)


def group_scores(rows: Floats, chosen: Ints, groups: Ints) -> tuple[Floats, Floats]:
    """Whether each outcome lies in each group, less its probability, [N, G], and the summed
    covariance [G, G].

    Args:
        rows: laws, [N, V].
        chosen: outcomes, [N].
        groups: the group of each outcome, [V], numbered from 0.
    """
    member = np.eye(int(groups.max()) + 1)[groups]
    mass = rows @ member
    return member[chosen] - mass, np.diag(mass.sum(0)) - mass.T @ mass


@dataclass
class ScoreTest:
    """A sum of scores, to be judged against zero.

    Args:
        name: of what is tested.
        degrees: numbers a score.
    """

    name: str
    degrees: int
    count: int = 0
    total: Floats = field(init=False)
    covariance: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.total = np.zeros(self.degrees)
        self.covariance = np.zeros((self.degrees, self.degrees))

    def add(self, scores: Floats, covariance: Floats | None = None) -> None:
        """Take in scores [N, degrees] and their summed covariance, N times the identity if None."""
        self.count += len(scores)
        self.total += scores.sum(0)
        self.covariance += len(scores) * np.eye(self.degrees) if covariance is None else covariance

    def noncentrality(self, mean: Floats) -> float:
        """What an outcome adds to the noncentrality where scores have this mean [degrees]."""
        return _quadratic(mean * self.count, self.covariance)[0] / max(self.count, 1)

    @property
    def statistic(self) -> float:
        return _quadratic(self.total, self.covariance)[0]

    @property
    def rank(self) -> int:
        """Degrees of freedom; 0 where too little could have come out otherwise."""
        return _quadratic(self.total, self.covariance)[1]

    @property
    def p_value(self) -> float:
        statistic, rank = _quadratic(self.total, self.covariance)
        return chi_square_tail(statistic, rank)


def _quadratic(vector: Floats, covariance: Floats) -> tuple[float, int]:
    """v' C^-1 v over the directions in which C is large enough, and their number."""
    values, vectors = np.linalg.eigh(covariance)
    kept = values >= FEWEST - 1e-9
    parts = (vectors.T @ vector)[kept]
    return float((parts**2 / values[kept]).sum()), int(kept.sum())


def chi_square_tail(x: float, degrees: int) -> float:
    """The probability that a chi-square variable exceeds `x`; 1 for no degree of freedom.

    The closed form of the incomplete gamma function for whole and half arguments (Abramowitz and
    Stegun 26.4.4 and 26.4.5).
    """
    half = x / 2.0
    if degrees == 0 or half <= 0.0:
        return 1.0
    odd = degrees % 2 == 1
    total = math.erfc(math.sqrt(half)) if odd else math.exp(-half)
    first = 0.5 if odd else 1.0
    for step in range((degrees - 1) // 2):
        power = first + step
        total += math.exp(power * math.log(half) - half - math.lgamma(power + 1.0))
    return min(total, 1.0)


def power(noncentrality: float, degrees: int, level: float) -> float:
    """The probability that a chi-square test rejects, as a Poisson mixture of central tails."""
    critical = critical_value(degrees, level)
    half = noncentrality / 2.0
    spread = 12.0 * math.sqrt(half) + 20.0
    total = 0.0
    for extra in range(max(0, int(half - spread)), int(half + spread) + 1):
        log_weight = -half - math.lgamma(extra + 1.0)
        log_weight += extra * math.log(half) if half > 0 else (0.0 if extra == 0 else -math.inf)
        total += math.exp(log_weight) * chi_square_tail(critical, degrees + 2 * extra)
    return min(total, 1.0)


@lru_cache
def critical_value(degrees: int, level: float) -> float:
    """What a chi-square variable exceeds with probability `level`."""
    return bisect(lambda x: level - chi_square_tail(x, degrees), 0.0, 1e4)


def bisect(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a growing function crosses zero between `low` and `high`."""
    for _ in range(80):
        middle = (low + high) / 2.0
        if function(middle) < 0:
            low = middle
        else:
            high = middle
    return high


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: rejecting those below a level errs anywhere with at most that probability
    (Holm, Scand. J. Statist. 6, 1979)."""
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
