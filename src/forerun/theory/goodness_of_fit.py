"""Goodness-of-fit tests for outcomes that each have their own distribution: scores, level and power.

The distribution of a token is its row; that of the end of a walk is its probabilities. A score maps an
outcome to a few numbers with mean zero and known covariance under the distribution. Sums of scores are
tested by chi-square. If the distributions are conditioned on everything before, the scores are
martingale differences, so outcomes of one text may be pooled although they depend on each other.

Smooth scores: the randomized probability integral transform turns an outcome into a number that is
uniform under its distribution (Rosenblatt, Ann. Math. Statist. 23, 1952; for discrete distributions
Brockwell, Statist. Probab. Lett. 77, 2007). Neyman's smooth test checks the uniformity (Skand. Aktuar.
20, 1937).

The power of tests is stated against families of deviations that a lossy method may cause. A family changes
rows by a strength. For small strengths, the total variation and the mean score are proportional to the
strength, so one strength describes the whole family.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.polynomial import legendre
from scipy import special

from forerun.theory.inputs import Floats, Ints

# Polynomials of a smooth test: location, spread, skewness, tails.
SMOOTH_DEGREES = 4
# Directions in which a sum of scores has less variance than this are too discrete for chi-square. The
# variance of smooth scores is the number of outcomes. Where scores have no bound, the squared variance over
# the sum of fourth moments stands for it, which is the variance for scores of 0 and 1.
LEAST_VARIANCE = 25.0
# The largest ratio that `ratio_scores` counts, so that few rare tokens do not decide.
MOST_RATIO = 4.0
# Strength at which a family is evaluated: small against 1, large against rounding.
SMALL = 0.01


def mass_before(rows: Floats, chosen: Ints, keys: Floats | None = None) -> tuple[Floats, Floats]:
    """Total probability of the outcomes before the chosen one, and its own probability, both [N].

    Args:
        rows: distributions, [N, V].
        chosen: outcomes, [N].
        keys: sort keys of the outcomes, lowest first, ties by index, [N, V]; None orders by index.
    """
    low, own = np.empty(len(rows)), rows[np.arange(len(rows)), chosen]
    for index, (row, token) in enumerate(zip(rows, chosen, strict=True)):
        before = row[:token]
        if keys is None:
            low[index] = before.sum()
        else:
            order, key = keys[index], keys[index, token]
            low[index] = _dot(row, order < key) + before[order[:token] == key].sum()
    return low, own


def transform(low: Floats, own: Floats, uniforms: Floats) -> Floats:
    """The randomized probability integral transform [N], uniform if outcomes follow their rows."""
    return np.clip(low + uniforms * own, 0.0, 1.0)


def smooth_scores(positions: Floats, degrees: int = SMOOTH_DEGREES) -> Floats:
    """Legendre polynomials of degrees 1 to `degrees`, orthonormal on [0, 1], [N, degrees].

    Args:
        positions: transforms of outcomes, [N].
    """
    scale = np.sqrt(2.0 * np.arange(1, degrees + 1) + 1.0)
    values: Floats = legendre.legvander(2.0 * positions - 1.0, degrees)[:, 1:] * scale
    return values


def mean_smooth_scores(
    rows: Floats, others: Floats, keys: Floats, degrees: int = SMOOTH_DEGREES
) -> Floats:
    """The mean smooth score [degrees] of outcomes that follow `others`, tested against `rows`.

    The transform of an outcome is uniform over its interval of [0, 1], so the polynomials are averaged
    over that interval.

    Args:
        rows, others: distributions, [N, V]; `others` is zero where `rows` is zero.
        keys: sort keys of the outcomes, [N, V].
    """
    odd = 2.0 * np.arange(1, degrees + 1) + 1.0
    total = np.zeros(degrees)
    # Row by row, so that a row's polynomials stay in the processor's cache.
    for row, other, key in zip(rows, others, keys, strict=True):
        order = np.argsort(key, kind="stable")
        row, other = row[order], other[order]
        edges = np.concatenate([[0.0], np.cumsum(row)]).clip(0.0, 1.0)
        density = np.divide(other, row, out=np.zeros_like(row), where=row > 0)
        # The integral of the polynomial of degree n is the difference of its neighbours / (2n + 1).
        values = legendre.legvander(2.0 * edges - 1.0, degrees + 1)
        total += density @ np.diff(values[:, 2:] - values[:, :-2], axis=0)
    means: Floats = total / (2.0 * np.sqrt(odd) * len(rows))
    return means


def group_scores(rows: Floats, chosen: Ints, groups: Ints) -> tuple[Floats, Floats]:
    """Scores of outcomes by group, [N, G], and their summed covariance, [G, G].

    The score for a group is 1 or 0, as the outcome lies in it or not, minus the group's probability.

    Args:
        rows: distributions, [N, V].
        chosen: outcomes, [N].
        groups: group of each token, [V], numbered from 0.
    """
    member = np.eye(int(groups.max()) + 1)[groups]
    mass = rows @ member
    return member[chosen] - mass, np.diag(mass.sum(0)) - mass.T @ mass


def surprise_scores(rows: Floats, chosen: Ints) -> tuple[Floats, Floats, float]:
    """Log probabilities of outcomes less their expectation, [N, 1], and sums of their moments.

    The efficient score for another temperature: no test sees a small one with fewer outcomes. The
    moments are the second, [1, 1], and the fourth.
    """
    scores, second, fourth = np.empty((len(rows), 1)), np.zeros((1, 1)), 0.0
    # Row by row, in place: new memory for each row would take longer than the arithmetic.
    centred, powers = np.empty((2, rows.shape[1]))
    for index, (row, token) in enumerate(zip(rows, chosen, strict=True)):
        np.log(np.add(row, row == 0.0, out=centred), out=centred)
        centred -= _dot(row, centred)
        scores[index] = centred[token]
        second += _dot(row, np.square(centred, out=powers))
        fourth += _dot(row, np.square(powers, out=powers))
    return scores, second, fourth


def ratio_scores(rows: Floats, ratios: Floats, chosen: Ints) -> tuple[Floats, Floats, float]:
    """Bounded ratios of the draft's probability to the row's, less their expectation, and two moments.

    Shapes and moments are those of `surprise_scores`. Without the bound it is the efficient score for
    rows mixed with the draft's.

    Args:
        ratios: those of `ratios_of`, [N, V].
    """
    bounded = np.minimum(ratios, MOST_RATIO)
    centred = bounded - np.einsum("ij,ij->i", rows, bounded)[:, None]
    squares = centred**2
    second, fourth = _dot(rows.ravel(), squares.ravel()), _dot(rows.ravel(), squares.ravel() ** 2)
    return centred[np.arange(len(rows)), chosen][:, None], np.array([[second]]), fourth


def ratios_of(rows: Floats, draft_rows: Floats) -> Floats:
    """The draft's probability of each outcome over the row's, [N, V]; 0 where the row has none."""
    return np.divide(draft_rows, rows, out=np.zeros_like(rows), where=rows > 0)


def logs_of(rows: Floats) -> Floats:
    """Logarithms of distributions; 0 for outcomes without probability."""
    # Ten times as fast as a logarithm under a mask.
    logs: Floats = np.log(rows + (rows == 0.0))
    return logs


def _dot(row: Floats, values: Floats | np.ndarray[Any, np.dtype[np.bool_]]) -> float:
    """The sum of products, by NumPy alone: threads of a linear algebra library take longer to wake."""
    return float(np.einsum("i,i->", row, values))


@dataclass
class ScoreTest:
    """A chi-square test that a sum of scores is zero.

    Args:
        name: name of the test.
        degrees: numbers per score.
        count, fourth, total, covariance: of the scores so far.
    """

    name: str
    degrees: int
    count: int = 0
    fourth: float = 0.0
    total: Floats = field(init=False)
    covariance: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.total = np.zeros(self.degrees)
        self.covariance = np.zeros((self.degrees, self.degrees))

    def add(self, scores: Floats, covariance: Floats | None = None, fourth: float = 0.0) -> None:
        """Add scores [N, degrees] and their summed covariance; None means N times the identity.

        Args:
            fourth: sum of fourth moments, for scores of one number without a bound.
        """
        self.count += len(scores)
        self.fourth += fourth
        self.total += scores.sum(0)
        self.covariance += len(scores) * np.eye(self.degrees) if covariance is None else covariance

    def noncentrality(self, mean: Floats) -> float:
        """Noncentrality per outcome if scores have the mean `mean`, [degrees]."""
        return self._quadratic(mean * self.count)[0] / max(self.count, 1)

    @property
    def statistic(self) -> float:
        return self._quadratic(self.total)[0]

    @property
    def rank(self) -> int:
        """Degrees of freedom; 0 if the outcomes vary too little to test."""
        return self._quadratic(self.total)[1]

    @property
    def p_value(self) -> float:
        statistic, rank = self._quadratic(self.total)
        return float(special.chdtrc(rank, statistic)) if rank else 1.0

    def _quadratic(self, vector: Floats) -> tuple[float, int]:
        """Quadratic form v' C^-1 v over the directions in which C is large enough, and their number."""
        values, vectors = np.linalg.eigh(self.covariance)
        sizes = values**2 / self.fourth if self.fourth else values
        large = sizes >= LEAST_VARIANCE - 1e-9
        parts = (vectors.T @ vector)[large]
        return float((parts**2 / values[large]).sum()), int(large.sum())


def power(noncentrality: float, degrees: int, level: float) -> float:
    """Probability that a chi-square test rejects, for a noncentrality."""
    critical = special.chdtri(degrees, level)
    return 1.0 - float(special.chndtr(critical, degrees, noncentrality))


def holm(p_values: Sequence[float], weights: Sequence[float] | None = None) -> list[float]:
    """P-values adjusted by Holm's method (Scand. J. Statist. 6, 1979).

    Rejecting those below a level makes any false rejection with at most that probability.

    Args:
        weights: shares of the level in proportion, positive; None for equal ones.
    """
    weights = weights or [1.0] * len(p_values)
    shares = [p_value / weight for p_value, weight in zip(p_values, weights, strict=True)]
    adjusted = [1.0] * len(p_values)
    largest, left = 0.0, sum(weights)
    for index in sorted(range(len(p_values)), key=lambda index: shares[index]):
        largest = max(largest, min(1.0, left * shares[index]))
        adjusted[index] = largest
        left -= weights[index]
    return adjusted


def sharpened(rows: Floats, strength: float = SMALL) -> Floats:
    """Rows [N, V] raised to the power 1 + strength, as if tokens were drawn at another temperature."""
    logs = np.log(rows, out=np.full_like(rows, -np.inf), where=rows > 0)
    powers = np.exp((1.0 + strength) * (logs - logs.max(1, keepdims=True)))
    moved: Floats = powers / powers.sum(1, keepdims=True)
    return moved


def drawn_to(rows: Floats, draft_rows: Floats, strength: float = SMALL) -> Floats:
    """Rows [N, V] mixed with the draft's, as if drafted tokens were accepted too easily.

    Tokens with probability 0 keep it.
    """
    possible = np.where(rows > 0, draft_rows, 0.0)
    total = possible.sum(1, keepdims=True)
    pull = np.divide(possible, total, out=rows.copy(), where=total > 0)
    mixed: Floats = rows + strength * (pull - rows)
    return mixed


def favoured(rows: Floats, groups: Ints, group: int, strength: float = SMALL) -> Floats:
    """Rows [N, V] with raised odds for one group of tokens, as from a wrong mask or bias."""
    member = (groups == group).astype(np.float64)
    mass = rows @ member
    raised: Floats = rows * (1.0 + strength * (member[None] - mass[:, None]))
    return raised


def mean_total_variation(rows: Floats, others: Floats) -> float:
    """Mean total variation between rows [N, V]."""
    return float(np.abs(rows - others).sum(1).mean() / 2.0)
