"""Charts as data: curves and rooflines for `plot`, intervals for `svg`."""

from __future__ import annotations

import math
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


class Span(NamedTuple):
    """A row of a chart of intervals: its ends, its mark, the words behind it, and its kind.

    Args:
        kind: a class of the page's style: `win`, `lose` or `even`.
    """

    name: str
    low: float
    value: float
    high: float
    words: str
    kind: str


@dataclass(frozen=True)
class Spans:
    """Intervals below each other, with a vertical line at `mark`."""

    title: str
    x_label: str
    rows: Sequence[Span]
    mark: float = 1.0


Chart = Curves | Roof
"""A chart that is drawn into a file."""


def amount(value: float) -> str:
    """A number with a unit prefix, such as `1.2 T` for 1.2e12."""
    power = max(0, min(int(math.log10(value)) // 3, 5)) if value > 0 else 0
    return f"{value / 1000**power:.3g} {('', 'k', 'M', 'G', 'T', 'P')[power]}"
