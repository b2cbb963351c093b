"""`--plot FILE`: checked before anything is computed, drawn at the end."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from forerun.cli.options import Option
from forerun.cli.param_types import FileName
from forerun.cli.target_file import check_writable
from forerun.errors import ConfigError

if TYPE_CHECKING:
    from forerun.report.chart import Chart


def plot_option() -> Option:
    """`--plot`."""
    text = "Draw it too; needs forerun[plot]."
    return Option("plot", "Other", type=FileName(), metavar="FILE.png", help=text)


def check_plot(file: str | None) -> None:
    """Check that a chart can be drawn and written, if one is asked for.

    Raises:
        ConfigError: without matplotlib, or for a file of another kind or that cannot be written.
    """
    if file is None:
        return
    from forerun.report.plot import FORMATS, format_of

    if find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib; run: pip install 'forerun[plot]'.")
    if format_of(file) not in FORMATS:
        kinds = ", ".join(f".{kind}" for kind in FORMATS)
        raise ConfigError(f"--plot is {file}; give a file name that ends in one of {kinds}.")
    check_writable("--plot", file)


def draw_plot(file: str | None, charts: Sequence[Chart]) -> None:
    """Draw the charts, if they are asked for, and say where.

    Raises:
        ConfigError: where the file cannot be written.
    """
    if file is None:
        return
    from forerun.report.plot import draw

    draw(file, charts)
    click.echo(f"forerun: drawn to {file}", err=True)
