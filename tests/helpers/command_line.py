"""The command line in this process."""

from __future__ import annotations

import json
from typing import Any, Protocol

import click
from click.testing import CliRunner, Result

from forerun.cli.generate import GenerateRequest
from forerun.cli.main import application
from forerun.cli.requests import read_given
from forerun.flags import request_from


class Cli:
    """`forerun generate` on the pair, in this process."""

    def __init__(self, target: str, draft: str) -> None:
        self.target, self.draft = target, draft

    def run(self, *args: str, **settings: Any) -> Result:
        """Any command line."""
        # A defect of the program must fail the test with its own traceback.
        return CliRunner().invoke(application, args, catch_exceptions=False, **settings)

    def generate(self, *args: str, **settings: Any) -> Result:
        """With target and draft named, and a limit."""
        pair = ("--model", self.target, "--draft-model", self.draft, "--policy", "fixed")
        return self.run("generate", *pair, "--max-tokens", "24", *args, **settings)

    def json(self, *args: str, **settings: Any) -> dict[str, Any]:
        """The object that `--json` prints, which is all that stands on standard output."""
        result = self.generate("--prompt", "def add", "--json", *args, **settings)
        assert result.exit_code == 0, result.output
        assert result.stdout.endswith("}\n")
        content: dict[str, Any] = json.loads(result.stdout)
        return content


class Write(Protocol):
    """`write(name, content)` makes a file and returns its path."""

    def __call__(self, name: str, content: str | bytes) -> str: ...


def generate_request(*args: str) -> GenerateRequest:
    """The request that `forerun generate` makes of these arguments."""
    command = application.get_command(click.Context(application), "generate")
    assert command is not None
    context = command.make_context("generate", list(args))
    return request_from(GenerateRequest, read_given(context, GenerateRequest))
