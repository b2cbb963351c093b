"""`generate --html FILE`: the completion as a page, beside whatever else shows it."""

from __future__ import annotations

from forerun.cli.output import Output
from forerun.cli.report import Outcome
from forerun.engine.html import page
from forerun.engine.requests import TokenEvent
from forerun.measure.paired import Run
from forerun.report.target_file import write_file


class PageOutput(Output):
    """Another output, and a page at the end.

    Args:
        other: shows the run.
        file: of the page.
    """

    def __init__(self, other: Output, file: str) -> None:
        self._other, self._file = other, file
        self._prompt = ""

    def prompt(self, text: str, *, apart: bool = False) -> None:
        """Take the prompt."""
        self._prompt = text + ("\n\n" if apart else "")
        self._other.prompt(text, apart=apart)

    def start(self, *, legend: bool = True) -> None:
        self._other.start(legend=legend)

    def event(self, event: TokenEvent) -> None:
        self._other.event(event)

    def begin(self, label: str, run: Run) -> None:
        self._other.begin(label, run)

    def finish(self, outcome: Outcome) -> None:
        """Show the end, and write the page."""
        self._other.finish(outcome)
        completion = outcome.run.completion
        write_file("page", self._file, page(completion, self._prompt, f"forerun: {outcome.model}"))
