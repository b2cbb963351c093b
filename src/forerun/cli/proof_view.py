"""A proof for people: the result of each part, on a terminal or in a pipe."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console

from forerun.proof.summary import sections, verdict
from forerun.report.terminal import show_tables


def show(content: dict[str, Any]) -> None:
    """Print the object of `--json`."""
    # Pipes have no width; in a terminal sentences break between words.
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    for table in sections(content):
        show_tables([table])
        print()
    for note in content["notes"]:
        console.print(f"Note: {note}", markup=False)
    style = "bold green" if content["passed"] else "bold red"
    console.print(f"{verdict(content)} ({content['seconds']:.0f} s)", style=style, markup=False)
