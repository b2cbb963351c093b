"""`generate --html FILE`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.command_line import Cli
from tests.helpers.refusals import refused


def test_the_page_is_written_beside_the_text(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "out.html"
    result = cli.generate("--prompt", "def <add>", "--temperature", "0", "--html", str(file))
    assert result.exit_code == 0, result.output
    assert f"page written to {file}" in result.stderr
    html = file.read_text(encoding="utf-8")
    assert "def &lt;add&gt;" in html
    assert 'class="accepted"' in html
    assert 'class="draft"' in html
    assert [path.name for path in tmp_path.iterdir()] == ["out.html"]


@pytest.mark.parametrize(
    "options", [("--json",), ("--compare", "--compare-rounds", "1"), ("--show-rounds",)], ids=str
)
def test_it_goes_with_every_output(cli: Cli, tmp_path: Path, options: tuple[str, ...]) -> None:
    file = tmp_path / "out.html"
    result = cli.generate("--prompt", "a", "--temperature", "0", "--html", str(file), *options)
    assert result.exit_code == 0, result.output
    assert file.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_an_unwritable_file_is_refused_before_anything_runs(cli: Cli, tmp_path: Path) -> None:
    for file in (tmp_path, tmp_path / "no" / "out.html"):
        # No model is there either, and nobody has looked for it.
        options = ("--model", "/no/model", "--prompt", "a", "--html", str(file))
        refused(cli.run("generate", *options), "--html", str(file))
