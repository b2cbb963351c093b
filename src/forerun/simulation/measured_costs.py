"""Costs of forwards from measurements."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from forerun.errors import ConfigError
from forerun.theory.inputs import Floats, costs, lengths, together

# What a measurement belongs to, and its least values.
_AXES = {"num_tokens": 1, "batch_size": 1, "context": 0}


class MeasuredCosts:
    """Seconds of a forward from measurements, linear in between.

    Args:
        rows: (tokens, batch size, context, seconds), one for each combination, in any order.

    Raises:
        ConfigError: for no rows, numbers out of range, or a combination that is missing or given twice.
    """

    def __init__(self, rows: Iterable[tuple[int, int, int, float]]) -> None:
        columns = list(zip(*rows, strict=True))
        if not columns:
            raise ConfigError("there are no measurements; give at least one.")
        measured = [
            np.unique(lengths(f"measured {name}", column, shortest=least), return_inverse=True)
            for (name, least), column in zip(_AXES.items(), columns[:-1], strict=True)
        ]
        self._points = [points for points, _ in measured]
        self._table = np.full([len(points) for points in self._points], np.nan)
        for *index, seconds in zip(
            *(indices for _, indices in measured),
            costs("seconds", columns[-1], above=True),
            strict=True,
        ):
            if not np.isnan(self._table[*index]):
                raise ConfigError(f"{self._combination(index)} is given twice; give it once.")
            self._table[*index] = seconds
        missing = np.argwhere(np.isnan(self._table))
        if len(missing):
            raise ConfigError(f"{self._combination(missing[0])} is missing; measure it.")

    def seconds(self, num_tokens: ArrayLike, batch_size: ArrayLike, context: ArrayLike) -> Floats:
        """As `ForwardCosts.seconds`.

        Raises:
            ConfigError: outside the measured range.
        """
        # Loaded late: a plan for hardware that is not at hand has no use for it.
        from scipy.ndimage import map_coordinates

        given = zip(_AXES.items(), (num_tokens, batch_size, context), strict=True)
        wanted = together(*(lengths(name, value, shortest=least) for (name, least), value in given))
        indices = []
        for name, points, values in zip(_AXES, self._points, wanted, strict=True):
            outside = values[(values < points[0]) | (values > points[-1])]
            if outside.size:
                raise ConfigError(
                    f"{name} is {outside.flat[0]}; it was measured in [{points[0]}, {points[-1]}]."
                )
            indices.append(np.interp(values.ravel(), points, np.arange(len(points))))
        seconds: Floats = map_coordinates(self._table, indices, order=1)
        return seconds.reshape(wanted[0].shape)

    def _combination(self, index: Iterable[int]) -> str:
        point = tuple(int(points[at]) for points, at in zip(self._points, index, strict=True))
        return f"(tokens, batch size, context) {point}"
