"""`--plot`: draws charts into a file by matplotlib, which is imported nowhere else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forerun.errors import ConfigError
from forerun.files import atomic_path, reason
from forerun.report.chart import Chart, Curves, HeatMap, Line, Roof
from forerun.simulation.plot_roof import draw_roof

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
_COLUMNS = 3
_WIDTH, _HEIGHT, _LEGEND, _DPI = 4.4, 3.4, 2.6, 150
_ROOF = (8.6, 5.9)
# Line styles tell lines apart in print and for readers who cannot tell the colours apart.
_STYLES = ("-", "--", "-.", ":")


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
    """A figure with the charts below each other, and their legends beside them."""
    from matplotlib.figure import Figure

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
        elif isinstance(chart, Roof):
            draw_roof(axes[0, 0], chart)
        else:
            _draw_map(part, axes[0, 0], chart)
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


def _draw_map(part: Any, axes: Any, chart: HeatMap) -> None:
    from matplotlib.colors import TwoSlopeNorm

    highest = max(map(max, chart.values))
    # The middle of the colours is 1, above which speculation pays.
    norm = TwoSlopeNorm(vcenter=1.0, vmin=0.0, vmax=min(max(highest, 1.01), 5.0))
    mesh = axes.pcolormesh(chart.x, chart.y, chart.values, cmap="RdYlGn", norm=norm, shading="auto")
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    bar = part.colorbar(mesh, ax=axes, label="speed-up over plain decoding", extend="max")
    axes.contour(chart.x, chart.y, chart.values, levels=[1.0], colors="black")
    bar.ax.axhline(1.0, color="black")


def format_of(file: str) -> str:
    """Format given by the suffix of a file name, such as `png`."""
    return Path(file).suffix.lower().removeprefix(".")
