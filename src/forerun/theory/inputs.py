"""Checks the arguments of formulas (numbers, lengths, rows of probability) and makes them arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerun.errors import ConfigError, DistributionError, shown

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Values = float | Floats
"""Result of a formula: a number for numbers, an array for arrays, by NumPy's broadcasting."""

SUM_TOLERANCE = 1e-6
"""Largest distance of a row's sum from 1 that counts as rounding in single precision."""

LONGEST = 1 << 31


def fractions(name: str, value: ArrayLike) -> Floats:
    """The value as an array of numbers in [0, 1]; a ConfigError for others."""
    reals = _reals(value)
    if reals is None or not np.all((reals >= 0.0) & (reals <= 1.0)):
        raise ConfigError(f"{name} is {shown(value)}; it must be a number in [0, 1].")
    return reals


def costs(name: str, value: ArrayLike, *, above: bool = False) -> Floats:
    """The value as an array of finite numbers >= 0, or > 0 if `above`; a ConfigError for others."""
    reals = _reals(value)
    if reals is None or not np.all(np.isfinite(reals) & (reals > 0 if above else reals >= 0)):
        allowed = "above zero" if above else "of zero or more"
        raise ConfigError(f"{name} is {shown(value)}; it must be a finite number {allowed}.")
    return reals


def lengths(name: str, value: ArrayLike, shortest: int = 0) -> Ints:
    """The value as an array of integers of at least `shortest`; a ConfigError for others."""
    array = _array(value)
    whole = array is not None and array.dtype.kind in "iu"
    if array is None or not whole or not np.all((array >= shortest) & (array <= LONGEST)):
        raise ConfigError(
            f"{name} is {shown(value)}; it must be an integer in [{shortest}, {LONGEST}]."
        )
    return array.astype(np.int64)


def as_rows(name: str, value: ArrayLike) -> Floats:
    """The value as rows of probability, [..., V], scaled to 1 where single precision rounded the sum.

    Raises:
        DistributionError: for an empty vocabulary, negative or NaN entries, or sums other than 1.
    """
    rows = _reals(value)
    if rows is None or rows.ndim == 0 or rows.shape[-1] == 0:
        raise DistributionError(
            f"{name} is {shown(value)}; give rows of numbers over at least one token."
        )
    if not np.all(rows >= 0.0):
        raise DistributionError(f"{name} has negative or NaN entries; give probabilities.")
    total = rows.sum(-1, keepdims=True)
    off = np.abs(total - 1.0)
    if not np.all(off <= SUM_TOLERANCE):
        worst = total.flat[int(np.argmax(off))]
        raise DistributionError(f"{name} has a row that sums to {worst:.9g}; rows must sum to 1.")
    # Rows that sum to 1 are returned unchanged, bit for bit.
    return rows if np.all(off <= 1e-9) else rows / total


def as_row(name: str, value: ArrayLike) -> Floats:
    """The value as one row of probability, [V].

    Raises:
        DistributionError: as `as_rows`, and for more than one row.
    """
    row = as_rows(name, value)
    if row.ndim != 1:
        raise DistributionError(f"{name} has the shape {row.shape}; give one row [V].")
    return row


def as_row_pair(p: ArrayLike, q: ArrayLike) -> tuple[Floats, Floats]:
    """Target and draft rows over one vocabulary, broadcast to a common shape [..., V]."""
    target, draft = as_rows("p (the target row)", p), as_rows("q (the draft row)", q)
    if target.shape[-1] != draft.shape[-1]:
        raise DistributionError(
            f"p has {target.shape[-1]} entries and q has {draft.shape[-1]}; "
            "target and draft must share one vocabulary."
        )
    target, draft = together(target, draft)
    return target, draft


def together(*arrays: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Broadcast arrays to one shape.

    Raises:
        ConfigError: for shapes that do not broadcast.
    """
    try:
        return np.broadcast_arrays(*arrays)
    except ValueError:
        shapes = " and ".join(str(array.shape) for array in arrays)
        raise ConfigError(
            f"shapes {shapes} do not fit; give arrays that broadcast together."
        ) from None


def softmax(logits: ArrayLike) -> Floats:
    """Softmax of logits, [..., V]; an entry of -inf has probability 0.

    Raises:
        DistributionError: for NaN, +inf, a row of all -inf or an empty vocabulary.
    """
    reals = _reals(logits)
    if reals is None or reals.ndim == 0 or reals.shape[-1] == 0:
        raise DistributionError(
            f"logits are {shown(logits)}; give rows of numbers over at least one token."
        )
    highest = reals.max(-1, keepdims=True)
    if not np.all(np.isfinite(highest)):
        raise DistributionError(
            "a row of logits is all -inf or has NaN or +inf; no token can be drawn from it."
        )
    weights = np.exp(reals - highest)
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def plain(result: Floats) -> Values:
    """Return an array without dimensions as a number, and any other array unchanged."""
    return float(result) if result.ndim == 0 else result


def _reals(value: ArrayLike) -> Floats | None:
    array = _array(value)
    return None if array is None or array.dtype.kind not in "fiu" else array.astype(np.float64)


def _array(value: ArrayLike) -> NDArray[Any] | None:
    """The value as an array; None if it cannot be one, such as a ragged list."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError):
        return None
