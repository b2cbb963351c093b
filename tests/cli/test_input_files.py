"""No input file is read further than such a file can be long, and whatever it holds is one line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command_line import Cli, Write
from tests.helpers.covering import covering
from tests.helpers.refusals import refused

PROMPT = ("--prompt", "def add")
# Everything that names a file to be read, with what comes before it on the command line.
INPUTS: dict[str, tuple[str, ...]] = {
    "prompt": ("generate", "--prompt-file"),
    "prediction": ("generate", *PROMPT, "--method", "prediction", "--prediction-file"),
    "config": ("generate", *PROMPT, "--config"),
    "tree": ("generate", *PROMPT, "--method", "ngram", "--tree"),
    "corpus": ("generate", *PROMPT, "--method", "suffix", "--corpus"),
    "prompts": ("prove", "--prompts"),
}


@pytest.fixture(autouse=True)
def short_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading two gigabytes takes seconds."""
    monkeypatch.setattr("forerun.measure.questions.MOST_BYTES", 2**20)


def command(cli: Cli, name: str, path: str) -> Any:
    first, *rest = INPUTS[name]
    return cli.run(first, "--model", cli.target, *rest, path)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero here")
@pytest.mark.parametrize("name", INPUTS)
def test_a_file_without_an_end(cli: Cli, name: str) -> None:
    refused(command(cli, name, "/dev/zero"), "/dev/zero")


@pytest.mark.parametrize("name", INPUTS)
def test_a_file_longer_than_memory(cli: Cli, name: str, tmp_path: Path) -> None:
    path = tmp_path / "endless"
    with path.open("wb") as file:
        file.truncate(2**42)
    refused(command(cli, name, str(path)), str(path))


@pytest.mark.parametrize(
    ("name", "path"),
    [
        case
        for case in covering(INPUTS, ["x" * 300, "x/" * 3000, "~nobody-here/x", "/", "line\nbreak"])
        # They may be folders.
        if case.values not in (("corpus", "/"), ("prompts", "/"))
    ],
)
def test_names_that_no_file_has(cli: Cli, name: str, path: str) -> None:
    refused(command(cli, name, path))


@pytest.mark.parametrize("name", INPUTS)
def test_bytes_that_are_no_text(cli: Cli, name: str, write: Write) -> None:
    refused(command(cli, name, write("latin", "ä".encode("latin-1"))), "latin")


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("config", "a.toml", "a = " + "[" * 100_000),
        ("config", "a.toml", "max-tokens = " + "9" * 5000),
        ("tree", "a.json", "[" * 100_000),
        ("tree", "a.json", '{"parents": [' + "9" * 5000 + "]}"),
        ("prompts", "a.jsonl", "[" * 100_000),
        ("prompts", "a.jsonl", "9" * 5000),
    ],
    ids=lambda value: value[:16],
)
def test_contents_that_no_parser_takes(
    cli: Cli, write: Write, name: str, file: str, content: str
) -> None:
    refused(command(cli, name, write(file, content)), file)


def test_a_pipe_is_read(cli: Cli) -> None:
    """What a shell writes as `--prompt-file <(command)`."""
    reader, writer = os.pipe()
    os.write(writer, b"def add")
    os.close(writer)
    result = cli.generate("--prompt-file", f"/dev/fd/{reader}", "--temperature", "0")
    os.close(reader)
    assert result.stdout == cli.generate(*PROMPT, "--temperature", "0").stdout


def test_standard_input_has_an_end(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from forerun import files

    monkeypatch.setattr(files, "MOST_BYTES", 10)
    refused(cli.generate(input="x" * 11), "standard input is longer than 10 B")
