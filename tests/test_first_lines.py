"""The check of docstrings' first lines finds what it should, and refuses nothing that is checked."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.helpers.documents import ROOT

SCRIPT = ROOT / "docs" / "first_lines.py"
PLANTED = '''"""A module of two tokens."""


class Draft:
    """Those that a drafter proposes."""

    length = 2
    """Number of tokens."""
    width: int = 1
    """of each level."""

    def empty(self) -> bool:
        """Whether there is none."""
        "The text after a docstring is not one."
        return False


async def run() -> None:
    """Italics are no pronoun.

    What follows the first line is free.
    """
    (lambda: 1)()
'''


@pytest.fixture(scope="module")
def first_lines() -> ModuleType:
    source = importlib.util.spec_from_file_location("first_lines", SCRIPT)
    assert source is not None
    assert source.loader is not None
    module = importlib.util.module_from_spec(source)
    source.loader.exec_module(module)
    return module


def test_planted_lines_are_found(
    first_lines: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "planted.py"
    file.write_text(PLANTED, encoding="utf-8")
    assert first_lines.main([str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{file}:5: Those that a drafter proposes.",
        f"{file}:10: of each level.",
        f"{file}:13: Whether there is none.",
    ]


@pytest.mark.parametrize(
    "word",
    [
        "It",
        "Its",
        "They",
        "Their",
        "Those",
        "These",
        "This",
        "That",
        "What",
        "Which",
        "Whether",
        "How",
        "Where",
        "When",
        "Who",
    ],
)
def test_words_that_need_a_neighbour_are_refused(
    first_lines: ModuleType, tmp_path: Path, word: str
) -> None:
    file = tmp_path / "word.py"
    file.write_text(f'"""{word} is read."""\n', encoding="utf-8")
    assert len(list(first_lines.refusals(file))) == 1
    file.write_text(f'"""{word}ever is read."""\n', encoding="utf-8")
    assert not list(first_lines.refusals(file))
