"""Tables: with lines and colours in a terminal, as aligned text in a pipe; or one JSON object."""

from __future__ import annotations

import platform
import shutil
import sys
import textwrap
from collections.abc import Mapping
from typing import Any

import click

from forerun import __version__
from forerun.cli.machine import SCHEMA_VERSION, host
from forerun.report.result import Result
from forerun.report.table import MEANINGS, Mark
from forerun.report.terminal import show_tables


def report(mode: str, result: Result, header: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The object of `--json`.

    Args:
        header: of a command that runs models; None for that of one that runs none.
    """
    import numpy as np

    usual = {
        "schema_version": SCHEMA_VERSION,
        "versions": {
            "forerun": __version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "hardware": host(),
    }
    return {
        **(usual if header is None else header),
        "mode": mode,
        "settings": dict(result.settings),
        **({"answers": list(result.answers)} if result.answers else {}),
        **result.facts,
        "rows": [dict(row) for row in result.rows],
    }


def show(result: Result) -> None:
    """Write answers and tables to standard output, and the meaning of marks to standard error."""
    if result.answers:
        click.echo("\n".join(map(_wrapped, result.answers)) + "\n")
    if not sys.stdout.isatty() and hasattr(sys.stdout, "reconfigure"):
        # Text in a pipe is UTF-8 whatever the locale.
        sys.stdout.reconfigure(encoding="utf-8")
    show_tables(result.tables)
    marks = {cell.mark for table in result.tables for row in table.rows for cell in row}
    legend = [f"{mark} {MEANINGS[mark]}" for mark in Mark if mark and mark in marks]
    if legend:
        click.echo(", ".join(legend), err=True)
    for note in result.notes:
        click.echo(f"forerun: {note}", err=True)


def _wrapped(sentence: str) -> str:
    if not sys.stdout.isatty():
        return sentence
    return textwrap.fill(sentence, shutil.get_terminal_size().columns)
