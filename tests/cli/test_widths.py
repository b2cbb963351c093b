"""Nothing that a command shows is wider than the terminal, with colour or without."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from forerun import _native
from tests.helpers.command_line import Cli, Write
from tests.helpers.terminal import COLOURED, in_terminal

TREE = ("--tree", "auto", "--max-tokens", "12")
COMPARED = ("--compare", "--compare-rounds", "1", "--max-tokens", "12", "--temperature", "0")
FEW = ("--num-tokens", "400", "--output-tokens", "20", "--equality-prompts", "2")
needs_kernels = pytest.mark.skipif(not _native.AVAILABLE, reason="no compiled kernels")
ROOFLINE = ("--draft-model", "zoo-draft", "--rounds", "1", "--contexts", "16")


def command_line(cli: Cli, write: Write, name: str) -> tuple[str, ...]:
    pair = ("--model", cli.target, "--draft-model", cli.draft)
    generate = ("generate", *pair, "--prompt", "def add", "--ignore-eos")
    return {
        "chain": (*generate, "--max-tokens", "12", "--seed", "1"),
        "tree": (*generate, *TREE),
        "rounds": (*generate, "--show-rounds", "--max-tokens", "24"),
        "rounds of a tree": (*generate, "--show-rounds", *TREE),
        "rounds of a drawn tree": (*generate, "--show-rounds", *TREE, "--temperature", "0.9"),
        "rounds with a seed": (*generate, "--show-rounds", "--seed", "4"),
        "compared": (*generate, *COMPARED),
        "info": ("info", cli.target),
        "prove": ("prove", *pair, "--prompts", write("prompts.txt", "def add\na\nb"), *FEW),
        "simulate": ("simulate",),
        "acceptances": (
            "simulate",
            "--acceptance",
            "0.5,0.8",
            "--lengths",
            "1-8",
            "--rounds",
            "100",
        ),
        "hardware": (
            "simulate",
            "--hardware",
            "h100",
            "--target",
            "llama-3.1-70b",
            "--draft",
            "llama-3.1-8b",
        ),
        "roofline": ("roofline", "-m", cli.target, *ROOFLINE, "--threads", "1"),
    }[name]


@pytest.mark.parametrize("no_color", ["", "1"], ids=["colour", "no colour"])
@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    "name",
    [
        "chain",
        "tree",
        "rounds",
        "rounds of a tree",
        "rounds of a drawn tree",
        "rounds with a seed",
        "compared",
        "info",
        pytest.param("prove", marks=pytest.mark.slow),
        "simulate",
        "acceptances",
        "hardware",
        pytest.param("roofline", marks=[needs_kernels, pytest.mark.zoo, pytest.mark.slow]),
    ],
)
def test_no_line_is_wider_than_the_terminal(
    few_cases: None,
    cli: Cli,
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
    columns: int,
    no_color: str,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr("forerun.models.cpu.threads._asked", [])
    command = command_line(cli, write, name)
    shown = in_terminal(monkeypatch, *command)
    lines = capfd.readouterr().err.splitlines()
    if command[0] != "generate":
        lines += shown.splitlines()
    # The model's text is the terminal's to wrap, and so are notes, a sentence each.
    wide = [line for line in lines if cell_len(COLOURED.sub("", line)) > columns]
    assert [line for line in wide if not line.startswith("forerun: ")] == []
