"""Roofline plot: arithmetic intensity against performance, both logarithmic."""

from __future__ import annotations

import math
from typing import Any

from forerun.report.chart import Dots, Roof

# Shapes for print, and colours that colour-blind readers can tell apart.
_MARKS = (("o", "#d55e00"), ("s", "#0072b2"), ("s", "#56b4e9"), ("^", "#009e73"), ("D", "#cc79a7"))
_FILLED = 2
_SHADES = ("#000000", "#444444", "#777777", "#999999")
# Height / width of a panel, fixed so that the angle of the slopes is known.
_ASPECT = 0.62
# Margins around the points, and right of the ridge, as factors.
_ROOM, _BEHIND_RIDGE = 3.0, 30.0
_SMALL = {"fontsize": "small"}


def draw_roof(axes: Any, chart: Roof) -> None:
    """Draw slopes and ceilings, the ridge, and the forwards below them.

    Args:
        axes: axes of matplotlib.
    """
    (x_from, x_to), (y_from, y_to) = _ranges(chart)
    axes.set_box_aspect(_ASPECT)
    axes.set(xscale="log", yscale="log", xlim=(x_from, x_to), ylim=(y_from, y_to))
    axes.set_xlabel("arithmetic intensity, FLOP/byte")
    axes.set_ylabel("performance, FLOP/s")
    axes.grid(alpha=0.3)
    tilt = math.atan(_ASPECT * math.log(x_to / x_from) / math.log(y_to / y_from))
    _draw_slopes(axes, chart, (x_from, y_from), math.degrees(tilt))
    _draw_ceilings(axes, chart, x_to)
    ridge, peak = chart.ridge
    axes.plot([ridge, ridge], [y_from, peak], color="black", linestyle=":", linewidth=1)
    beside = {"xytext": (4, 5), "textcoords": "offset points", "rotation": 90}
    axes.annotate(f"ridge {ridge:.3g} FLOP/byte", (ridge, y_from), va="bottom", **beside, **_SMALL)
    for index, (name, dots) in enumerate(chart.dots.items()):
        if dots.x:
            shape, colour = _MARKS[index % len(_MARKS)]
            _draw_dots(axes, name, dots, shape, colour, filled=index < _FILLED)
    axes.legend(loc="lower right", framealpha=1.0, **_SMALL)


def _draw_slopes(axes: Any, chart: Roof, corner: tuple[float, float], tilt: float) -> None:
    """Draw the limits of memory bandwidth."""
    top = max(chart.ceilings.values())
    for (name, bandwidth), shade in zip(chart.slopes.items(), _SHADES, strict=False):
        first = max(corner[0], corner[1] / bandwidth)
        axes.plot([first, top / bandwidth], [first * bandwidth, top], color=shade)
        axes.annotate(
            f"{name} {_amount(bandwidth)}B/s",
            (first, first * bandwidth),
            (5, 11),
            textcoords="offset points",
            color=shade,
            rotation=tilt,
            rotation_mode="anchor",
            **_SMALL,
        )


def _draw_ceilings(axes: Any, chart: Roof, x_to: float) -> None:
    """Draw the limits of arithmetic."""
    steepest = max(chart.slopes.values())
    for (name, peak), shade in zip(chart.ceilings.items(), _SHADES, strict=False):
        axes.plot([peak / steepest, x_to], [peak, peak], color=shade)
        text = f"{name} {_amount(peak)}FLOP/s"
        axes.text(x_to / 1.1, 1.05 * peak, text, ha="right", va="bottom", color=shade, **_SMALL)


def _draw_dots(axes: Any, name: str, dots: Dots, shape: str, colour: str, *, filled: bool) -> None:
    face = colour if filled else "none"
    axes.plot(dots.x, dots.y, shape, color=colour, markerfacecolor=face, label=name, zorder=3)
    beside = {"xytext": (0, -14), "textcoords": "offset points", "ha": "center"}
    for x, y, label in zip(dots.x, dots.y, dots.labels, strict=True):
        if label:
            axes.annotate(label, (x, y), color=colour, **beside, **_SMALL)


def _ranges(chart: Roof) -> tuple[tuple[float, float], tuple[float, float]]:
    """Ranges of both axes, from below the least forward to beyond the ridge."""
    xs = [x for dots in chart.dots.values() for x in dots.x]
    ys = [y for dots in chart.dots.values() for y in dots.y]
    last = max(_ROOM * max(xs), _BEHIND_RIDGE * chart.ridge[0])
    return (min(xs) / _ROOM, last), (min(ys) / _ROOM, _ROOM * max(chart.ceilings.values()))


def _amount(value: float) -> str:
    """A number with a unit prefix, such as `1.2 T` for 1.2e12."""
    power = max(0, min(int(math.log10(value)) // 3, 5))
    return f"{value / 1000**power:.3g} {('', 'k', 'M', 'G', 'T', 'P')[power]}"
