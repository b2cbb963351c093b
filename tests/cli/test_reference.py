"""docs/cli.md is what the commands say of themselves."""

from __future__ import annotations

import runpy
from pathlib import Path

from forerun.cli.main import application, every_command

DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.md"


def _rendered() -> str:
    text: str = runpy.run_path(str(DOCUMENT.with_name("cli_reference.py")))["render"]()
    return text


def test_document_has_not_drifted() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == _rendered(), (
        "run: python docs/cli_reference.py > docs/cli.md"
    )


def test_every_command_and_option_is_there() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    every = [" ".join(words) for words, _ in every_command(application)]
    assert {"generate", "train", "train data"} <= set(every)
    assert all(f"## forerun {name}\n" in text for name in every)
    assert "--num-speculative-tokens" in text
