"""Where the prompt comes from: a flag, a file or standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from forerun.errors import PromptError


def read_prompt(text: str | None, file: str | None) -> str:
    """The prompt, character for character as it was given.

    Args:
        text: of `--prompt`.
        file: of `--prompt-file`; `-` is standard input, as is None where no text is given either.

    Raises:
        PromptError: where there is none, or it is empty or no text.
    """
    if text is None:
        text = _read_file(Path(file)) if file not in (None, "-") else _read_stdin(file == "-")
    if not text:
        raise PromptError("the prompt is empty; give at least one character to go on from.")
    return text


def read_prediction(file: str | None) -> str:
    """The output that is expected; empty where no file names one.

    Raises:
        PromptError: where the file cannot be read, is empty or no text.
    """
    if file is None:
        return ""
    text = _read_file(Path(file), "prediction file")
    if not text:
        raise PromptError(f"prediction file {file} is empty; leave it out.")
    return text


def _read_file(path: Path, what: str = "prompt file") -> str:
    try:
        return _decode(path.read_bytes(), f"{what} {path}")
    except OSError as error:
        reason = (error.strerror or "unknown reason").lower()
        raise PromptError(f"{what} {path} cannot be read: {reason}.") from error


def _read_stdin(asked_for: bool) -> str:
    if sys.stdin is None or (sys.stdin.isatty() and not asked_for):
        raise PromptError("there is no prompt; give --prompt, --prompt-file, or pipe one in.")
    return _decode(sys.stdin.buffer.read(), "standard input")


def _decode(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PromptError(f"{where} is not UTF-8 text (byte {error.start}).") from error
