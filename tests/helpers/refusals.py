"""What every refusal of the command line looks like."""

from __future__ import annotations

from typing import Any


def refused(result: Any, *words: str) -> str:
    """The one line of a refusal, which must hold `words`."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines: list[str] = result.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("forerun: error: ")
    for word in words:
        assert word in lines[0]
    return lines[0]
