"""Results of commands as their options ask for them: text or JSON, and files with a plot, report or page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from forerun.cli.commands import print_json
from forerun.cli.options import Option
from forerun.cli.param_types import FileName
from forerun.errors import ConfigError
from forerun.report.target_file import check_writable, write_file

if TYPE_CHECKING:
    import torch

    from forerun.report.result import Result

# Options that say where a result goes, and are no settings.
_WHERE = ("json", "plot", "config")


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


def settings_in(values: Mapping[str, Any], *unused: str) -> dict[str, Any]:
    """Values of the options that count, for `--json`."""
    return {name: value for name, value in values.items() if name not in (*_WHERE, *unused)}


def give(result: Result, values: Mapping[str, Any], device: torch.device | None = None) -> int:
    """Print a result and write the files that are asked for; the exit code.

    Args:
        device: of the model; None for a command that runs none.

    Raises:
        ConfigError: where a file cannot be written.
    """
    if values.get("plot") is not None:
        from forerun.report.plot import draw

        draw(values["plot"], result.charts)
        click.echo(f"forerun: drawn to {values['plot']}", err=True)
    if values["json"]:
        print_json(replace(result, device=device).as_dict())
    else:
        from forerun.report.terminal import show

        show(result)
    if values.get("markdown") is not None:
        from forerun.report.markdown import document

        write_file("report", values["markdown"], document(result))
    if values.get("html") is not None:
        from forerun.report.html import page

        write_file("page", values["html"], page(result))
    return result.exit_code
