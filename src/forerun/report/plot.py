"""Drawer of charts into a file by matplotlib, which is imported nowhere else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun.errors import ConfigError
from forerun.files import atomic_path, reason
from forerun.report.chart import Chart, Curves, Dots, Line, Roof, amount

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
_COLUMNS = 3
_WIDTH, _HEIGHT, _LEGEND, _DPI = 4.4, 3.4, 2.6, 150
_ROOF = (8.6, 5.9)
# Line styles tell lines apart in print and for readers who cannot tell the colours apart.
_STYLES = ("-", "--", "-.", ":")
# Shapes for print, and colours that colour-blind readers can tell apart.
_MARKS = (("o", "#d55e00"), ("s", "#0072b2"), ("s", "#56b4e9"), ("^", "#009e73"), ("D", "#cc79a7"))
_FILLED = 2
_SHADES = ("#000000", "#444444", "#777777", "#999999")
# Height / width of a panel, fixed so that the angle of the slopes is known.
_ASPECT = 0.62
# Margins around the points, and right of the ridge, as factors.
_ROOM, _BEHIND_RIDGE = 3.0, 30.0
_SMALL = {"fontsize": "small"}


def draw(file: str, charts: Sequence[Chart]) -> None:
    """Draw charts into a file, which is replaced as a whole or not at all.

    Raises:
        ConfigError: if the file cannot be written.
    """
    figure = figure_of(charts)
    try:
        with atomic_path(file) as temporary:
            figure.savefig(temporary, format=format_of(file), dpi=_DPI)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {reason(error)}.") from error


def figure_of(charts: Sequence[Chart]) -> Figure:
    """A figure with the charts below each other, and their legends beside them.

    Raises:
        ConfigError: without charts.
    """
    from matplotlib.figure import Figure

    if not charts:
        raise ConfigError("there is nothing to draw: this result has no chart.")
    grids = [_grid(chart) for chart in charts]
    width = _WIDTH * max(columns for _, columns in grids) + _LEGEND
    rows: list[float] = [rows for rows, _ in grids]
    if any(isinstance(chart, Roof) for chart in charts):
        width, rows = max(width, _ROOF[0]), [_ROOF[1] / _HEIGHT] * len(rows)
    figure = Figure(figsize=(width, _HEIGHT * sum(rows)), layout="constrained")
    parts = figure.subfigures(len(charts), 1, height_ratios=rows, squeeze=False)[:, 0]
    for part, chart, grid in zip(parts, charts, grids, strict=True):
        part.suptitle(chart.title)
        axes = part.subplots(*grid, sharex=True, sharey=True, squeeze=False)
        if isinstance(chart, Curves):
            _draw_curves(axes, chart)
        else:
            _draw_roof(axes[0, 0], chart)
    return figure


def _grid(chart: Chart) -> tuple[int, int]:
    """Numbers of rows and columns of panels."""
    panels = len(chart.panels) if isinstance(chart, Curves) else 1
    columns = min(math.ceil(math.sqrt(panels)), _COLUMNS)
    return math.ceil(panels / columns), columns


def _draw_curves(axes: Any, chart: Curves) -> None:
    for panel in axes.flat[len(chart.panels) :]:
        panel.remove()
    panels = list(axes.flat[: len(chart.panels)])
    for panel, (title, lines) in zip(panels, chart.panels.items(), strict=True):
        panel.set_title(title, fontsize="medium")
        panel.set_xlabel(chart.x_label)
        panel.tick_params(labelbottom=True)
        if chart.logarithmic:
            panel.set_xscale("log", base=2)
        panel.grid(alpha=0.3)
        _draw_lines(panel, lines)
        if chart.reference is not None:
            panel.axhline(1.0, color="black", linewidth=1, label=chart.reference)
    for panel in axes[:, 0]:
        panel.set_ylabel(chart.y_label)
    # The legend stands beside the first row of panels, where it hides none of them.
    panels[: axes.shape[1]][-1].legend(
        loc="upper left", bbox_to_anchor=(1.02, 1.0), fontsize="small", borderaxespad=0.0
    )


def _draw_lines(panel: Any, lines: Mapping[str, Line]) -> None:
    from matplotlib import colormaps

    shades = colormaps["viridis"]
    for index, (name, line) in enumerate(lines.items()):
        (drawn,) = panel.plot(
            line.x,
            line.y,
            label=name,
            marker="." if len(line.x) < 32 else None,
            color=shades(0.9 * index / max(1, len(lines) - 1)),
            linestyle=_STYLES[index % len(_STYLES)],
        )
        if line.band is not None:
            panel.fill_between(line.x, *line.band, alpha=0.2, color=drawn.get_color())


def _draw_roof(axes: Any, chart: Roof) -> None:
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
            f"{name} {amount(bandwidth)}B/s",
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
        text = f"{name} {amount(peak)}FLOP/s"
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


def format_of(file: str) -> str:
    """Format given by the suffix of a file name, such as `png`."""
    return Path(file).suffix.lower().removeprefix(".")
