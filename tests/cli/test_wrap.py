"""Words in a terminal: not cut at its edge, in whatever pieces they come."""

from __future__ import annotations

import io
import re
import textwrap

import pytest
from rich.console import Console

from forerun.cli.terminal import TerminalOutput
from forerun.core import Origin
from tests.helpers.command_line import Cli
from tests.helpers.terminal import in_terminal

TEXT = "A draft model runs ahead, and its target checks everything that it proposes in one forward."
WIDTH = 24
_PARTS = re.compile(r"\x1b\[(\d*)([A-Za-z])|(.|\n)")


def screen(written: str) -> list[str]:
    """Lines that a terminal shows."""
    lines, column = [""], 0
    for number, letter, character in _PARTS.findall(written):
        if letter == "D":
            column -= int(number)
        elif letter == "K":
            lines[-1] = lines[-1][:column]
        elif character == "\n":
            lines, column = [*lines, ""], 0
        elif character:
            lines[-1] = lines[-1][:column] + character
            column += 1
    return [line.rstrip() for line in lines]


@pytest.mark.parametrize("size", [1, 3, 5, 100])
@pytest.mark.parametrize("colour", [True, False])
def test_words_are_not_cut(size: int, colour: bool) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=WIDTH, no_color=not colour)
    output = TerminalOutput(console, Console(file=io.StringIO()), marks=False)
    for start in range(0, len(TEXT), size):
        output.write(TEXT[start : start + size], Origin.ACCEPTED)
    assert screen(file.getvalue()) == textwrap.wrap(TEXT, WIDTH - 1)


def test_a_word_longer_than_a_line_is_left_to_the_terminal() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=WIDTH)
    output = TerminalOutput(console, Console(file=io.StringIO()), marks=False)
    output.write("x" * 60 + " end", Origin.PLAIN)
    assert screen(file.getvalue()) == ["x" * 60 + " end"]


def test_quiet_is_the_text_alone(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--prompt", "def add", "--raw", "--temperature", "0")
    loud, quiet = cli.generate(*options), cli.generate(*options, "-q")
    assert quiet.stdout == loud.stdout
    assert quiet.stderr == ""
    assert loud.stderr
    pair = ("--model", cli.target, "--draft-model", cli.draft, "--max-tokens", "24")
    shown = in_terminal(monkeypatch, "generate", *pair, *options, "-q")
    assert "def add" not in shown
    assert "«" not in shown
    assert "\x1b[4;32m" not in shown
