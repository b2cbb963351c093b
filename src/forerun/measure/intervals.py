"""Statistics with the interval around them: by bootstrap, or by a standard error."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from forerun.options import check
from forerun.theory.inputs import Floats

_RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A statistic and its 95 % bootstrap interval over prompts or samples, the largest source of noise."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f}–{self.high:.2f})"


def median(values: ArrayLike) -> Interval:
    """Median of the values, with its interval."""
    return _bootstrap(np.median, values)


def mean(values: ArrayLike) -> Interval:
    """Mean of the values, with its interval."""
    return _bootstrap(np.mean, values)


def ratio(numerators: ArrayLike, denominators: ArrayLike) -> Interval | None:
    """Ratio of two sums, with its interval; None if the second sum is zero."""
    if not np.sum(denominators):
        return None

    whole = np.sum(numerators) / np.sum(denominators)

    def of_sums(above: Floats, below: Floats, axis: int) -> Floats:
        numerator, denominator = above.sum(axis), below.sum(axis)
        # A resample with a denominator of zero counts as the whole.
        empty = np.full(np.shape(numerator), whole)
        ratios: Floats = np.divide(numerator, denominator, out=empty, where=denominator > 0)
        return ratios

    return _bootstrap(of_sums, numerators, denominators)


def _bootstrap(statistic: Callable[..., Floats], *samples: ArrayLike) -> Interval:
    from scipy.stats import bootstrap

    data = [np.asarray(sample, dtype=float) for sample in samples]
    value = float(statistic(*data, axis=0))
    if len(data[0]) == 1:
        return Interval(value, value, value)
    interval = bootstrap(
        data, statistic, n_resamples=_RESAMPLES, paired=True, method="percentile", rng=0
    ).confidence_interval
    return Interval(value, float(interval.low), float(interval.high))


@dataclass(frozen=True)
class Estimate:
    """A mean or ratio of means.

    Args:
        value: value of the estimate.
        standard_error: standard error of the estimate; NaN for a single round.
        degrees: degrees of freedom of the error, which is the number of rounds or batches minus one;
            infinite if the error is known.
    """

    value: float
    standard_error: float
    degrees: float = field(default=math.inf, compare=False)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Confidence interval of the true value at `level`, by Student's t.

        The interval is valid for many rounds. For dependent rounds it is a little too narrow, the more so
        the fewer they are.

        Raises:
            ConfigError: for a level outside [0, 1].
        """
        level = check("level", level, float, ge=0.0, le=1.0)
        # Without spread the value is certain at every level; with a single round (NaN) at none.
        margin = self.standard_error
        if margin > 0.0:
            margin *= float(special.stdtrit(self.degrees, 0.5 + 0.5 * level))
        return self.value - margin, self.value + margin


def ratio_of_means(above: ArrayLike, below: ArrayLike, batch: int = 1) -> Estimate:
    """Estimate of mean(above) / mean(below) over rounds [n], with its error by the delta method.

    Rounds that depend on their neighbours are summed in batches of `batch` rounds. The longer a batch, the
    less it depends on its neighbours.
    """
    top, bottom = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    value = float(top.mean() / bottom.mean())
    count = len(top) // batch
    if count < 2:
        return Estimate(value, math.nan)
    off = (top - value * bottom)[: count * batch].reshape(count, batch).sum(-1)
    scale = batch * float(bottom.mean())
    return Estimate(value, float(np.std(off, ddof=1)) / scale / math.sqrt(count), count - 1)


def ratio_of_dependent_means(above: ArrayLike, below: ArrayLike) -> Estimate:
    """Estimate as `ratio_of_means`, for dependent rounds: of one text, or under an adaptive rule.

    A round inherits context and length from the round before, so easy rounds come in clusters. Treating
    them as independent would understate the error. With batches of sqrt(n) rounds, both the length and
    the number of batches grow with n.
    """
    estimate = ratio_of_means(above, below, batch=math.isqrt(np.size(above)))
    # A few batches may agree by chance, which would give an error of zero.
    least = ratio_of_means(above, below).standard_error
    return replace(estimate, standard_error=max(estimate.standard_error, least))
