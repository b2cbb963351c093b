"""A proof for people: the result of each part, on a terminal or in a pipe."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from forerun.proof.summary import PASSED, Section, sections, verdict


def show(content: dict[str, Any]) -> None:
    """Print the object of `--json`."""
    # Pipes have no width; in a terminal sentences break between words.
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    for section in sections(content):
        console.print(_table(section))
        for sentence in section.sentences:
            console.print(sentence, markup=False)
        console.print()
    for note in content["notes"]:
        console.print(f"Note: {note}", markup=False)
    style = "bold green" if content["passed"] else "bold red"
    console.print(f"{verdict(content)} ({content['seconds']:.0f} s)", style=style, markup=False)


def _table(section: Section) -> Table:
    table = Table(
        title=section.title, title_justify="left", title_style="bold", box=None, pad_edge=False
    )
    for name in section.header:
        table.add_column(name, justify="right" if table.columns else "left")
    for *cells, finding in section.rows:
        table.add_row(*cells, f"[{'green' if finding == PASSED else 'red'}]{finding}[/]")
    return table
