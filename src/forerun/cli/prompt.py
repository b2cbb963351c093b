"""Where the prompt comes from: a flag, a file or standard input."""

from __future__ import annotations

import sys

from forerun.errors import PromptError
from forerun.files import read_stdin, read_text

EXAMPLE = 'forerun generate "Why is the sky blue?"'


def read_prompt(text: str | None, file: str | None) -> str:
    """The prompt, character for character as it was given.

    Args:
        text: of `--prompt`.
        file: of `--prompt-file`; `-` is standard input, as is None where no text is given either.

    Raises:
        PromptError: for a prompt that is missing, empty, too long or not text.
    """
    if text is None:
        if file is None or file == "-":
            text = _read_stdin(asked_for=file == "-")
        else:
            text = read_text(file, "prompt file", PromptError)
    if not text:
        raise PromptError("the prompt is empty; give at least one character to go on from.")
    return text


def read_prediction(file: str | None) -> str:
    """The output that is expected; empty without a file.

    Raises:
        PromptError: for a file that cannot be read, is empty, too long or not text.
    """
    if file is None:
        return ""
    text = read_text(file, "prediction file", PromptError)
    if not text:
        raise PromptError(f"prediction file {file} is empty; leave it out.")
    return text


def _read_stdin(asked_for: bool) -> str:
    if sys.stdin is None or (sys.stdin.isatty() and not asked_for):
        raise PromptError(
            "there is no prompt; give it as an argument, in a file with --prompt-file, or pipe it in: "
            f"{EXAMPLE}"
        )
    return read_stdin(PromptError)
