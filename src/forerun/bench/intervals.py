"""Bootstrap intervals over prompts: what one happens to ask is the largest noise of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
    """The median of one value a prompt."""
    array = np.asarray(values, dtype=float)
    return _interval(len(array), lambda chosen: float(np.median(array[chosen])))


def mean(values: Sequence[float]) -> Interval:
    """The mean of one value a prompt."""
    array = np.asarray(values, dtype=float)
    return _interval(len(array), lambda chosen: float(array[chosen].mean()))


def ratio(numerators: ArrayLike, denominators: ArrayLike) -> Interval | None:
    """The ratio of two sums over prompts; None where there is nothing to divide by."""
    above, below = np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float)
    if not below.sum():
        return None
    # A resample of prompts that all have nothing below is left out by its NaN.
    with np.errstate(invalid="ignore", divide="ignore"):
        return _interval(len(below), lambda one: float(above[one].sum() / below[one].sum()))


def _interval(count: int, statistic: Callable[[NDArray[np.intp]], float]) -> Interval:
    random = np.random.default_rng(0)
    found = [statistic(random.integers(0, count, count)) for _ in range(_RESAMPLES)]
    low, high = np.nanquantile(found, [0.025, 0.975])
    return Interval(statistic(np.arange(count)), float(low), float(high))
