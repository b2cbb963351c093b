"""What people see in a terminal."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from forerun.cli.terminal import TerminalOutput
from forerun.core import Origin
from forerun.engine.requests import TokenEvent
from tests.helpers.command_line import Cli
from tests.helpers.terminal import COLOURED, GREEN, in_terminal


@pytest.fixture
def options(cli: Cli) -> tuple[str, ...]:
    models = ("--model", cli.target, "--draft-model", cli.draft, "--no-monitor")
    return ("generate", *models, "--prompt", "def add", "--temperature", "0", "--max-tokens", "24")


def test_text_is_coloured_by_origin(
    cli: Cli, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = cli.json("--temperature", "0")
    assert "accepted" in content["origins"]
    shown = in_terminal(monkeypatch, *options)
    assert GREEN in shown
    expected = "".join(c if c in "\n\t" or c.isprintable() else "?" for c in content["text"])
    visible = "".join(c if c in "\n\t" or c.isprintable() else "?" for c in COLOURED.sub("", shown))
    assert len(visible) == len(expected) + 1


def test_no_color_is_honoured(options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert GREEN not in in_terminal(monkeypatch, *options)


def test_json_stays_plain_in_a_terminal(
    options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = in_terminal(monkeypatch, *options, "--json", "--max-tokens", "4")
    assert len(json.loads(shown)["token_ids"]) == 4
    assert "\x1b" not in shown


def consoles() -> tuple[Console, io.StringIO, Console, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    settings: Any = {"force_terminal": True, "color_system": "standard", "width": 80}
    return Console(file=out, **settings), out, Console(file=err, **settings), err


def test_legend_names_every_origin() -> None:
    console, _, stderr, err = consoles()
    TerminalOutput(console, stderr).legend()
    assert all(origin in err.getvalue() for origin in Origin)


def test_progress_leaves_no_trace() -> None:
    console, _, stderr, err = consoles()
    output = TerminalOutput(console, stderr)
    unused: Any = None
    output.begin("round 1 of 2, plain", unused)
    output.legend()
    lines = err.getvalue().split("\r\x1b[2K")
    assert lines[1] == "comparing: round 1 of 2, plain"
    assert "accepted" in lines[2]


def test_text_is_neither_wrapped_nor_obeyed() -> None:
    console, out, stderr, _ = consoles()
    output = TerminalOutput(console, stderr)
    for text in ("\ta [red]", "b" * 200 + " :smile:  \n", "\x1b[2J\x07"):
        output.event(TokenEvent(0, 0, Origin.ACCEPTED, text))
    shown = COLOURED.sub("", out.getvalue())
    assert shown == "\ta [red]" + "b" * 200 + " :smile:  \n" + "\u241b[2J\u2407"


def test_panel_holds_the_statistics(cli: Cli) -> None:
    options = ("--prompt", "def add", "--temperature", "0", "--compare", "--compare-rounds", "1")
    talk = cli.generate(*options).stderr
    for entry in (
        "tokens per target forward",
        "mean acceptance length",
        "acceptance rate",
        "by position",
        "prefill",
        "draft",
        "verify",
        "speed-up",
        "same tokens as plain       yes",
    ):
        assert entry in talk
    assert "█" in talk
