"""Output of text as it comes: nowhere, in a terminal, or in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forerun.cli.outcome import Outcome
    from forerun.cli.terminal import PlainOutput
    from forerun.engine.requests import TokenEvent


class Output:
    """Output that shows nothing; subclasses show a text and how it came.

    Attributes:
        takes_logprobs: whether log probabilities reach who asks for them.
    """

    takes_logprobs = True

    def __init__(self, *, marks: bool = True) -> None:
        """Make an output that shows nothing; `marks` is of no use for it."""

    def prompt(self, text: str, *, apart: bool = False) -> None:
        """Take the prompt, to be shown by `start`.

        Args:
            apart: whether an answer follows, not text that goes on from the prompt.
        """

    def start(self, *, legend: bool = True) -> None:
        """Explain the marks, unless there will be none, and show the prompt before the first token."""

    def event(self, event: TokenEvent) -> None:
        """Show the text that a token completes."""

    def begin(self, label: str) -> None:
        """Show that a run of a comparison begins."""

    def end(self, text: str) -> None:
        """Show the rest of a text, some tokens of which an interruption may have kept back."""

    def finish(self, outcome: Outcome, *, panel: bool = True) -> None:
        """Show the rest of the text, and in a panel how it came."""


NewOutput = Callable[..., Output]
"""A function that returns an output; with `marks=False` one for the text alone."""


def visible_output(*, marks: bool = True) -> PlainOutput:
    """Output on standard output, which is a terminal or a pipe.

    Args:
        marks: whether a terminal shows where tokens came from.
    """
    from forerun.cli.terminal import PlainOutput, TerminalOutput

    if sys.stdout.isatty():
        # What a terminal's encoding lacks must not end the run.
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")
        return TerminalOutput(marks=marks)
    # Prompts are read as UTF-8 whatever the locale, and text is written as such.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8")
    return PlainOutput()
