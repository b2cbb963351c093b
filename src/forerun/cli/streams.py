"""The standard streams of a process: which of them failed, and going on where only talk is lost."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any, ClassVar, TextIO

from forerun.errors import ConfigError
from forerun.files import reason


class _Output(io.FileIO):
    """A file that remembers what was wrong with it."""

    failures: ClassVar[list[tuple[int | None, str]]] = []
    """Number and text of errors; the error itself would keep everything that led to it alive."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failures.append((error.errno, reason(error)))
            raise


class _Talk(io.FileIO):
    """A file that takes everything; what cannot be written is lost."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def prepare() -> None:
    """Make standard error one that never fails, and standard output one that says when it does.

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
    """The number and the text of the first error of standard output; None if there was none."""
    return _Output.failures[0] if _Output.failures else None


def discard_output() -> None:
    """Send what is still buffered nowhere, so that the interpreter's exit does not complain."""
    # A stream without a file has nothing to be flushed.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _again(stream: TextIO, kind: type[io.FileIO]) -> TextIO:
    """The same stream over a file of another kind."""
    assert isinstance(stream, io.TextIOWrapper)
    return io.TextIOWrapper(
        io.BufferedWriter(kind(stream.fileno(), "wb", closefd=False)),
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
