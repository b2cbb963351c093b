"""`--plot`: charts as a file, drawn by matplotlib, which nothing else here needs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from forerun.cli.simulation.result import Curves, HeatMap
from forerun.cli.target_file import check_writable
from forerun.errors import ConfigError
from forerun.files import atomic_path

FORMATS = ("png", "svg", "pdf")
_WIDTH, _HEIGHT, _DPI = 6.4, 4.8, 150


def check_plot(file: str) -> None:
    """See that a chart can be drawn and where it goes, before anything is computed.

    Raises:
        ConfigError: without matplotlib, for another kind of file, or one that cannot be written.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib; run: pip install 'forerun[plot]'.")
    if _format(file) not in FORMATS:
        kinds = ", ".join(f".{kind}" for kind in FORMATS)
        raise ConfigError(f"--plot is {file}; give a file name that ends in one of {kinds}.")
    check_writable("--plot", file)


def draw(file: str, charts: Sequence[Curves | HeatMap]) -> None:
    """Draw the charts side by side; the file is there whole or not at all.

    Raises:
        ConfigError: where the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH * len(charts), _HEIGHT), layout="constrained")
    for place, chart in enumerate(charts, start=1):
        axes = figure.add_subplot(1, len(charts), place)
        axes.set_title(chart.title)
        axes.set_xlabel(chart.x_label)
        if isinstance(chart, Curves):
            _draw_curves(axes, chart)
        else:
            _draw_map(figure, axes, chart)
    try:
        with atomic_path(file) as temporary:
            figure.savefig(temporary, format=_format(file), dpi=_DPI)
    except OSError as error:
        reason = (error.strerror or "unknown reason").lower()
        raise ConfigError(f"{file} cannot be written: {reason}.") from error


def _draw_curves(axes: Any, chart: Curves) -> None:
    for name, (x, y) in chart.lines.items():
        (line,) = axes.plot(x, y, marker="." if len(x) < 32 else None, label=name)
        if name in chart.bands:
            axes.fill_between(x, *chart.bands[name], alpha=0.2, color=line.get_color())
    axes.axhline(1.0, color="black", linestyle="--", linewidth=1, label="break-even")
    axes.set_ylabel("speed-up over plain decoding")
    if chart.logarithmic:
        axes.set_xscale("log", base=2)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _draw_map(figure: Any, axes: Any, chart: HeatMap) -> None:
    from matplotlib.colors import TwoSlopeNorm

    highest = max(map(max, chart.values))
    # One is the middle of the colours; above it speculation pays, however little.
    norm = TwoSlopeNorm(vcenter=1.0, vmin=0.0, vmax=min(max(highest, 1.01), 5.0))
    mesh = axes.pcolormesh(chart.x, chart.y, chart.values, cmap="RdYlGn", norm=norm, shading="auto")
    axes.set_ylabel(chart.y_label)
    figure.colorbar(mesh, ax=axes, label="speed-up over plain decoding", extend="max")
    axes.contour(chart.x, chart.y, chart.values, levels=[1.0], colors="black")
    axes.plot([], [], color="black", label="break-even")
    axes.legend(loc="upper left", fontsize="small")


def _format(file: str) -> str:
    return Path(file).suffix.lower().removeprefix(".")
