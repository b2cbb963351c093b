"""Costs of forwards from a table of measurements."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import ArrayLike

from forerun.errors import ConfigError
from forerun.theory.inputs import Floats, costs, lengths, together

_LEAST = {"num_tokens": 1, "batch_size": 1, "context": 0}


@dataclass(frozen=True)
class MeasuredCosts:
    """Seconds of a forward from a table of measurements, linear in between.

    Args:
        num_tokens, batch_sizes, contexts: measured values, ascending.
        table: seconds of each combination, [tokens, batch sizes, contexts].

    Raises:
        ConfigError: for a table of another shape, axes that do not ascend, or times of 0 or less.
    """

    num_tokens: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    contexts: tuple[int, ...]
    table: tuple[tuple[tuple[float, ...], ...], ...]

    def __post_init__(self) -> None:
        for name, axis in self._axes.items():
            points = lengths(f"measured {name}", axis, shortest=_LEAST[name])
            if points.ndim != 1 or not points.size or np.any(np.diff(points) <= 0):
                raise ConfigError(f"measured {name} is {axis}; give ascending numbers.")
        table = costs("the table of seconds", self.table, above=True)
        shape = tuple(len(axis) for axis in self._axes.values())
        if table.shape != shape:
            raise ConfigError(f"the table of seconds is {table.shape}; it must be {shape}.")

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[int, int, int, float]]) -> MeasuredCosts:
        """From (tokens, batch size, context, seconds), one row for each combination, in any order.

        Raises:
            ConfigError: for a combination that is missing or given twice.
        """
        by_key: dict[tuple[int, int, int], float] = {}
        for *key, seconds in rows:
            tokens, batch_size, context = key
            if (tokens, batch_size, context) in by_key:
                raise ConfigError(
                    f"(tokens, batch size, context) {tuple(key)} is given twice; give it once."
                )
            by_key[tokens, batch_size, context] = seconds
        axes = [tuple(sorted({key[axis] for key in by_key})) for axis in range(3)]
        missing = [key for key in product(*axes) if key not in by_key]
        if missing:
            raise ConfigError(f"(tokens, batch size, context) {missing[0]} is missing; measure it.")
        table = tuple(
            tuple(tuple(by_key[n, b, c] for c in axes[2]) for b in axes[1]) for n in axes[0]
        )
        return cls(axes[0], axes[1], axes[2], table)

    def seconds(self, num_tokens: ArrayLike, batch_size: ArrayLike, context: ArrayLike) -> Floats:
        """As `ForwardCosts.seconds`.

        Raises:
            ConfigError: outside the measured range.
        """
        # Loaded late: a plan for hardware that is not at hand has no use for it.
        from scipy.ndimage import map_coordinates

        wanted = together(
            *(
                lengths(name, value, shortest=_LEAST[name])
                for name, value in zip(self._axes, (num_tokens, batch_size, context), strict=True)
            )
        )
        indices = []
        for (name, points), values in zip(self._axes.items(), wanted, strict=True):
            outside = values[(values < points[0]) | (values > points[-1])]
            if outside.size:
                raise ConfigError(
                    f"{name} is {outside.flat[0]}; it was measured in [{points[0]}, {points[-1]}]."
                )
            indices.append(np.interp(values.ravel(), points, np.arange(len(points))))
        seconds: Floats = map_coordinates(np.asarray(self.table), indices, order=1)
        return seconds.reshape(wanted[0].shape)

    @property
    def _axes(self) -> dict[str, tuple[int, ...]]:
        return {
            "num_tokens": self.num_tokens,
            "batch_size": self.batch_sizes,
            "context": self.contexts,
        }
