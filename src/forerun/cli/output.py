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
    """Output that shows nothing; subclasses show a text and the origin of its tokens.

    Attributes:
        takes_logprobs: log probabilities reach the user.
    """

    takes_logprobs = True

    def __init__(self, *, marks: bool = True) -> None:
        """Make an output that shows nothing and ignores `marks`."""

    def prompt(self, text: str, *, apart: bool = False) -> None:
        """Take the prompt, to be shown by `start`.

        Args:
            apart: whether an answer follows, not text that goes on from the prompt.
        """

    def start(self, *, legend: bool = True) -> None:
        """Show the prompt, after the meaning of the marks if `legend` is true."""

    def event(self, event: TokenEvent) -> None:
        """Show the text that a token completes."""

    def begin(self, label: str) -> None:
        """Show that a run of a comparison begins."""

    def end(self, text: str) -> None:
        """Show the rest of a text: an interruption may have held back its last tokens."""

    def finish(self, outcome: Outcome, *, panel: bool = True) -> None:
        """Show the rest of the text and, in a panel, its statistics."""


NewOutput = Callable[..., Output]
"""A function that returns an output; `marks=False` shows the text alone."""


def visible_output(*, marks: bool = True) -> PlainOutput:
    """The output for standard output, a terminal or a pipe.

    Args:
        marks: show the origin of tokens in a terminal.
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
