"""Charts as data: curves, maps, rooflines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Line(NamedTuple):
    """A curve, optionally with the lower and upper edge of a band around it."""

    x: Sequence[float]
    y: Sequence[float]
    band: tuple[Sequence[float], Sequence[float]] | None = None


@dataclass(frozen=True)
class Curves:
    """A chart of lines by name, in panels by title, which share axes and line names.

    Args:
        reference: name of a horizontal line at 1; None for no line.
    """

    title: str
    x_label: str
    panels: Mapping[str, Mapping[str, Line]]
    logarithmic: bool = False
    y_label: str = "speed-up over plain decoding"
    reference: str | None = "break-even"


@dataclass(frozen=True)
class HeatMap:
    """A map of speed-ups, [y, x], with a contour line at 1."""

    title: str
    x_label: str
    y_label: str
    x: Sequence[float]
    y: Sequence[float]
    values: Sequence[Sequence[float]]


class Dots(NamedTuple):
    """Forwards as points of a roofline plot.

    Args:
        x: FLOP per byte.
        y: FLOP per second.
        labels: labels beside the points; empty ones are not drawn.
    """

    x: Sequence[float]
    y: Sequence[float]
    labels: Sequence[str]


@dataclass(frozen=True)
class Roof:
    """A roofline plot: performance against arithmetic intensity, under the limits of a machine.

    Args:
        slopes: memory bandwidths in bytes per second, by name.
        ceilings: peaks in FLOP per second, by name.
        ridge: point at which memory traffic and arithmetic take equally long: FLOP per byte and FLOP per
            second.
        dots: points by name.
    """

    title: str
    slopes: Mapping[str, float]
    ceilings: Mapping[str, float]
    ridge: tuple[float, float]
    dots: Mapping[str, Dots]


Chart = Curves | HeatMap | Roof
