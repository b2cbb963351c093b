"""A report of `forerun bench` for people: the verdict in words above its tables."""

from __future__ import annotations

import sys

import click

from forerun.bench.report import Report
from forerun.bench.tables import tables
from forerun.report.terminal import show_tables


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
    click.echo()
    show_tables(tables(report))
    if report.closeness:
        click.echo(f"\n{report.closeness}")
    for remark in report.remarks:
        click.echo(f"forerun: {remark}", err=True)
