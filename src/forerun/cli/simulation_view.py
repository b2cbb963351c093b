"""Tables: with lines and colours in a terminal, as aligned text in a pipe; or one JSON object."""

from __future__ import annotations

import platform
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from forerun import __version__
from forerun.cli.machine import SCHEMA_VERSION, host
from forerun.simulation.report import MEANINGS, Cell, Mark, Result, Table

if TYPE_CHECKING:
    from rich.table import Table as Grid

STYLES = {
    Mark.NONE: "",
    Mark.BEST: "bold green",
    Mark.FREE: "green",
    Mark.SLOWER: "red",
    Mark.NO_ROOM: "yellow",
    Mark.APPROXIMATE: "yellow",
}


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
    if sys.stdout.isatty():
        _show_in_terminal(result.tables)
    else:
        # Text in a pipe is UTF-8 whatever the locale.
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(encoding="utf-8")
        click.echo("\n\n".join(map(_as_text, result.tables)))
    marks = {cell.mark for table in result.tables for cell in _cells(table)}
    legend = [f"{mark} {MEANINGS[mark]}" for mark in Mark if mark and mark in marks]
    if legend:
        click.echo(", ".join(legend), err=True)
    for note in result.notes:
        click.echo(f"forerun: {note}", err=True)


def _wrapped(sentence: str) -> str:
    if not sys.stdout.isatty():
        return sentence
    return textwrap.fill(sentence, shutil.get_terminal_size().columns)


def _show_in_terminal(tables: Sequence[Table]) -> None:
    from rich.console import Console, ConsoleDimensions
    from rich.measure import Measurement

    console = Console(highlight=False)
    terminal = console.width
    unlimited = console.options.update(max_width=1 << 16)
    for table in tables:
        # No number or name is cut: headers break first, then columns move together, and the terminal
        # wraps what is still too wide.
        for space, slash, padding in ((" ", "/", 1), ("\n", "/", 1), ("\n", "/\n", 0)):
            grid = _grid(table, space, slash, padding)
            width = Measurement.get(console, unlimited, grid).maximum
            if width <= terminal:
                break
        console.size = ConsoleDimensions(max(terminal, width), console.height)
        console.print(table.title, style="italic", markup=False, soft_wrap=True)
        console.print(grid)


def _grid(table: Table, space: str, slash: str, padding: int) -> Grid:
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(
        box=box.SIMPLE_HEAD, collapse_padding=True, padding=(0, padding), show_edge=bool(padding)
    )
    for name in table.header:
        broken = name.replace(" ", space).replace("/", slash)
        grid.add_column(broken, justify="right", no_wrap=True)
    with_marks = _columns_with_marks(table)
    for group in table.groups:
        for row in group:
            texts = map(_written, row, with_marks)
            grid.add_row(
                *(Text(text, STYLES[cell.mark]) for text, cell in zip(texts, row, strict=True))
            )
        grid.add_section()
    return grid


def _as_text(table: Table) -> str:
    lines = [list(table.header)]
    with_marks = _columns_with_marks(table)
    lines += [list(map(_written, row, with_marks)) for group in table.groups for row in group]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = [
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True))
        for line in lines
    ]
    return "\n".join([table.title, *(line.rstrip() for line in aligned)])


def _columns_with_marks(table: Table) -> list[bool]:
    rows = [row for group in table.groups for row in group]
    return [any(cell.mark for cell in column) for column in zip(*rows, strict=True)]


def _written(cell: Cell, with_marks: bool) -> str:
    # Numbers stay below each other whether or not they are marked.
    marked = f"{cell.text}{cell.mark or (' ' if with_marks else '')}"
    return f"{marked} {cell.tail}" if cell.tail else marked


def _cells(table: Table) -> list[Cell]:
    return [cell for group in table.groups for row in group for cell in row]
