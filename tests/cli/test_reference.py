"""docs/cli.md is what the commands say of themselves."""

from __future__ import annotations

from pathlib import Path

from forerun.cli.groups import every_command
from forerun.cli.main import application
from forerun.cli.reference import render

DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.md"


def test_document_has_not_drifted() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == render(), (
        "run: python -m forerun.cli.reference > docs/cli.md"
    )


def test_every_command_and_option_is_there() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    every = [" ".join(words) for words, _ in every_command(application)]
    assert {"generate", "train", "train data"} <= set(every)
    assert all(f"## forerun {name}\n" in text for name in every)
    assert "--num-speculative-tokens" in text
