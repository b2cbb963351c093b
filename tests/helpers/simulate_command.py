"""`forerun simulate` in this process, and what it prints."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from forerun.cli.main import application


def simulate(*options: str, **settings: Any) -> Result:
    result = CliRunner().invoke(
        application, ["simulate", *options], catch_exceptions=False, **settings
    )
    assert result.exit_code == 0, result.output
    return result


def content(*options: str, **settings: Any) -> dict[str, Any]:
    """The object that --json prints, which is all that stands on standard output."""
    result = simulate(*options, "--json", **settings)
    assert result.stderr == ""
    assert result.stdout.endswith("}\n")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def cells(text: str) -> list[list[str]]:
    """The rows of the first table in a pipe, below its title and header."""
    return [line.split() for line in text.split("\n\n")[0].splitlines()[2:]]
