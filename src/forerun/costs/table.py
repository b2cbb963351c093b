"""Time of forwards: seconds by new tokens, batch size and context."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from forerun.errors import ConfigError, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

CostRow = tuple[int, int, int, float]
"""New tokens per request, number of requests, cached tokens per request, seconds."""

# Axes of a measurement, with the least value of each.
AXES = {"num_tokens": 1, "batch_size": 1, "context": 0}


@dataclass(frozen=True)
class CostTable:
    """Seconds of forwards, measured or modelled, on a full grid.

    Between points they are interpolated linearly. Beyond the last point they continue the slope
    between the last two points, but never fall; below the first point they equal the first.

    Args:
        num_tokens: new tokens of each request, rising.
        batch_sizes: numbers of requests, rising.
        contexts: tokens of each request in the cache, rising.
        grid: seconds by context, batch size and number of tokens.
    """

    num_tokens: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    contexts: tuple[int, ...]
    grid: tuple[tuple[tuple[float, ...], ...], ...]

    @classmethod
    def from_rows(cls, rows: Iterable[CostRow]) -> CostTable:
        """Make a table from measurements, one for each combination, in any order.

        Raises:
            ConfigError: for no rows, numbers out of range, or a combination that is missing or
                given twice.
        """
        seconds: dict[tuple[int, int, int], float] = {}
        for row in rows:
            _check(row)
            tokens, batch, context, value = row
            if (tokens, batch, context) in seconds:
                raise ConfigError(
                    f"(tokens, batch size, context) {(tokens, batch, context)} is given twice; give it once."
                )
            seconds[tokens, batch, context] = float(value)
        if not seconds:
            raise ConfigError("there are no measurements; give at least one.")
        num_tokens, batch_sizes, contexts = (
            tuple(sorted(set(axis))) for axis in zip(*seconds, strict=True)
        )
        for point in ((n, b, c) for c in contexts for b in batch_sizes for n in num_tokens):
            if point not in seconds:
                raise ConfigError(f"(tokens, batch size, context) {point} is missing; measure it.")
        grid = tuple(
            tuple(tuple(seconds[n, b, c] for n in num_tokens) for b in batch_sizes)
            for c in contexts
        )
        return cls(num_tokens, batch_sizes, contexts, grid)

    @property
    def rows(self) -> list[CostRow]:
        """The measurements, as `from_rows` takes them."""
        return [
            (n, b, c, self.grid[k][j][i])
            for k, c in enumerate(self.contexts)
            for j, b in enumerate(self.batch_sizes)
            for i, n in enumerate(self.num_tokens)
        ]

    @overload
    def seconds(
        self, num_tokens: float, batch_size: float = ..., context: float = ...
    ) -> float: ...

    @overload
    def seconds(
        self, num_tokens: ArrayLike, batch_size: ArrayLike = ..., context: ArrayLike = ...
    ) -> NDArray[np.float64]: ...

    def seconds(self, num_tokens: Any, batch_size: Any = 1, context: Any = 0) -> Any:
        """Seconds of a forward of `num_tokens` new tokens in each of `batch_size` requests.

        The numbers may be means, which need not be whole. Arrays broadcast.
        """
        numbers = (num_tokens, batch_size, context)
        if not all(isinstance(number, (int, float)) for number in numbers):
            import numpy as np

            return np.vectorize(self._seconds, otypes=[float])(*numbers)
        return self._seconds(*numbers)

    def _seconds(self, num_tokens: float, batch_size: float, context: float) -> float:
        by_context = [
            _along(
                self.batch_sizes,
                [_along(self.num_tokens, row, num_tokens) for row in plane],
                batch_size,
            )
            for plane in self.grid
        ]
        return _along(self.contexts, by_context, context)


def _along(points: Sequence[int], values: Sequence[float], at: float) -> float:
    """Linear interpolation between points; the first value before them, never falling beyond them."""
    if len(points) == 1 or at <= points[0]:
        return values[0]
    index = min(bisect_right(points, at), len(points) - 1) - 1
    share = (at - points[index]) / (points[index + 1] - points[index])
    rise = values[index + 1] - values[index]
    if share <= 1.0:
        return values[index] + share * rise
    return values[index + 1] + (share - 1.0) * max(rise, 0.0)


def _check(row: CostRow) -> None:
    for (name, least), value in zip(AXES.items(), row, strict=False):
        if type(value) is not int or value < least:
            raise ConfigError(
                f"measured {name} is {shown(value)}; it must be an integer of at least {least}."
            )
    seconds = row[3]
    whole = isinstance(seconds, float | int) and not isinstance(seconds, bool)
    if not whole or not (math.isfinite(seconds) and seconds > 0):
        raise ConfigError(f"seconds is {shown(seconds)}; it must be a finite number above zero.")
