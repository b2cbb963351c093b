"""Bootstrap intervals over prompts, whose choice is the largest source of noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import bootstrap

Floats = NDArray[np.float64]

_RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f}–{self.high:.2f})"


def median(values: Sequence[float]) -> Interval:
    """The median over prompts."""
    return _interval(np.median, values)


def mean(values: Sequence[float]) -> Interval:
    """The mean over prompts."""
    return _interval(np.mean, values)


def ratio(numerators: ArrayLike, denominators: ArrayLike) -> Interval | None:
    """The ratio of two sums over prompts; None if the second is zero."""
    if not np.sum(denominators):
        return None

    whole = np.sum(numerators) / np.sum(denominators)

    def of_sums(above: Floats, below: Floats, axis: int) -> Floats:
        numerator, denominator = above.sum(axis), below.sum(axis)
        # A resample with a denominator of zero counts as the whole.
        empty = np.full(np.shape(numerator), whole)
        ratios: Floats = np.divide(numerator, denominator, out=empty, where=denominator > 0)
        return ratios

    return _interval(of_sums, numerators, denominators)


def _interval(statistic: Callable[..., Floats], *samples: ArrayLike) -> Interval:
    data = [np.asarray(sample, dtype=float) for sample in samples]
    value = float(statistic(*data, axis=0))
    if len(data[0]) == 1:
        return Interval(value, value, value)
    interval = bootstrap(
        data, statistic, n_resamples=_RESAMPLES, paired=True, method="percentile", rng=0
    ).confidence_interval
    return Interval(value, float(interval.low), float(interval.high))
