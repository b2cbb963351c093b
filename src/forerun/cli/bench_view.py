"""A report of `forerun bench` for people: the verdict in words above its tables."""

from __future__ import annotations

import sys

import click

from forerun.bench.report import Report
from forerun.bench.tables import Table, tables


def show(report: Report) -> None:
    """Write it to standard output, and what was left out to standard error."""
    if hasattr(sys.stdout, "reconfigure"):
        # Text in a pipe is UTF-8 whatever the locale.
        sys.stdout.reconfigure(
            **({"errors": "replace"} if sys.stdout.isatty() else {"encoding": "utf-8"})
        )
    for sentence, details in report.paragraphs:
        click.secho(f"{sentence}.", bold=True)
        for detail in details:
            click.echo(f"  {detail}")
    for table in tables(report):
        click.echo()
        _show_in_terminal(table) if sys.stdout.isatty() else click.echo(_as_text(table))
    if report.closeness:
        click.echo(f"\n{report.closeness}")
    for remark in report.remarks:
        click.echo(f"forerun: {remark}", err=True)


def _show_in_terminal(table: Table) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(title=table.title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    for number, name in enumerate(table.header):
        grid.add_column(name, justify="right" if number else "left", no_wrap=False)
    for row in table.rows:
        grid.add_row(*map(Text, row))
    Console(highlight=False).print(grid)


def _as_text(table: Table) -> str:
    lines = [list(table.header), *map(list, table.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = [
        "  ".join(
            text.rjust(width) if number else text.ljust(width)
            for number, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([table.title, *aligned])
