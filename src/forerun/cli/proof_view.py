"""A proof for people: the result of each part, on a terminal or in a pipe."""

from __future__ import annotations

from typing import Any

from forerun.proof.summary import sections, verdict
from forerun.report.result import Result, Sentence
from forerun.report.terminal import show as show_result


def show(content: dict[str, Any]) -> None:
    """Print the object of `--json`."""
    style = "bold green" if content["passed"] else "bold red"
    said = Sentence(f"{verdict(content)} ({content['seconds']:.0f} s)", style=style)
    notes = [f"Note: {note}" for note in content["notes"]]
    show_result(Result(tables=list(sections(content)), endings=[*notes, said]))
