"""Standard streams that survive a reader who leaves, and outputs of text as it comes."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

from forerun.errors import ConfigError
from forerun.files import reason

if TYPE_CHECKING:
    from forerun.cli.outcome import Outcome
    from forerun.cli.terminal import PlainOutput
    from forerun.engine.requests import TokenEvent


class Output:
    """Output that shows nothing; subclasses show a text and the origin of its tokens.

    Attributes:
        takes_logprobs: log probabilities reach the user.
        shows_prompts: prompts do, as here by the JSON object.
    """

    takes_logprobs = True
    shows_prompts = True

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


class _Output(io.FileIO):
    """A file that remembers its write errors."""

    failures: ClassVar[list[tuple[int | None, str]]] = []
    """Number and text of each error; an exception would keep its frames alive."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failures.append((error.errno, reason(error)))
            raise


class _Talk(io.FileIO):
    """A file that drops what it cannot write."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def prepare_streams() -> None:
    """Replace standard error by a stream that never fails, standard output by one that notes errors.

    Raises:
        ConfigError: where standard output is closed.
    """
    # A file that is opened later must not become a standard stream.
    with contextlib.suppress(OSError):
        while (null := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(null)
    if sys.stderr is not None:
        sys.stderr = _again(sys.stderr, _Talk)
    if sys.stdout is None:
        raise ConfigError("standard output is closed; give it a file, a pipe or a terminal.")
    sys.stdout = _again(sys.stdout, _Output)


def output_failure() -> tuple[int | None, str] | None:
    """Number and text of the first error of standard output; None without an error."""
    return _Output.failures[0] if _Output.failures else None


def discard_output() -> None:
    """Discard buffered output, so that the interpreter reports no error at its exit."""
    # A stream without a file has nothing to be flushed.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _again(stream: TextIO, kind: type[io.FileIO]) -> TextIO:
    """A copy of a stream that writes through another class of files."""
    assert isinstance(stream, io.TextIOWrapper)
    return io.TextIOWrapper(
        io.BufferedWriter(kind(stream.fileno(), "wb", closefd=False)),
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
