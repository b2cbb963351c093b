"""What forwards cost, from a table of measurements."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerun.errors import ConfigError
from forerun.theory.inputs import Floats, costs, lengths, together

Indices = NDArray[np.integer]

_LEAST = {"num_tokens": 1, "batch_size": 1, "context": 0}


@dataclass(frozen=True)
class MeasuredCosts:
    """Seconds of a forward from a table of measurements, linear in between.

    Args:
        num_tokens, batch_sizes, contexts: where was measured, each ascending.
        table: seconds, one entry for each combination, [tokens, batch sizes, contexts].

    Raises:
        ConfigError: for a table of another shape, an order that does not ascend, or times that
            are none.
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
            ConfigError: for a combination that is missing or there twice.
        """
        found: dict[tuple[int, int, int], float] = {}
        for tokens, batch_size, context, seconds in rows:
            key = (tokens, batch_size, context)
            if key in found:
                raise ConfigError(
                    f"(tokens, batch size, context) {key} is there twice; give it once."
                )
            found[key] = seconds
        axes = [tuple(sorted({key[axis] for key in found})) for axis in range(3)]
        missing = [key for key in product(*axes) if key not in found]
        if missing:
            raise ConfigError(f"(tokens, batch size, context) {missing[0]} is missing; measure it.")
        table = tuple(
            tuple(tuple(found[n, b, c] for c in axes[2]) for b in axes[1]) for n in axes[0]
        )
        return cls(axes[0], axes[1], axes[2], table)

    def seconds(self, num_tokens: ArrayLike, batch_size: ArrayLike, context: ArrayLike) -> Floats:
        """As `ForwardCosts.seconds`.

        Raises:
            ConfigError: outside what was measured.
        """
        names = tuple(self._axes)
        wanted = together(
            *(
                lengths(name, value, shortest=_LEAST[name])
                for name, value in zip(names, (num_tokens, batch_size, context), strict=True)
            )
        )
        places = [self._place(name, values) for name, values in zip(names, wanted, strict=True)]
        table = np.asarray(self.table)
        total = np.zeros(wanted[0].shape)
        # The corners of the cell, each with the product of its three weights.
        for corner in product((0, 1), repeat=3):
            weight, index = np.ones(total.shape), []
            for (below, above, way), up in zip(places, corner, strict=True):
                weight = weight * (way if up else 1.0 - way)
                index.append(above if up else below)
            total = total + weight * table[tuple(index)]
        return total

    @property
    def _axes(self) -> dict[str, tuple[int, ...]]:
        return {
            "num_tokens": self.num_tokens,
            "batch_size": self.batch_sizes,
            "context": self.contexts,
        }

    def _place(self, name: str, values: Indices) -> tuple[Indices, Indices, Floats]:
        """The points of the axis around each value, and how far it is from one to the other."""
        points = np.asarray(self._axes[name])
        outside = values[(values < points[0]) | (values > points[-1])]
        if outside.size:
            raise ConfigError(
                f"{name} is {outside.flat[0]}; it was measured in [{points[0]}, {points[-1]}]."
            )
        below = np.searchsorted(points, values, side="right") - 1
        above = np.minimum(below + 1, len(points) - 1)
        gap = np.maximum(points[above] - points[below], 1)
        return below, above, (values - points[below]) / gap
