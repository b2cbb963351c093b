"""What people see in a terminal."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from rich.console import Console

from forerun.cli.terminal import STYLES, TerminalOutput
from forerun.core import Origin
from forerun.engine.requests import TokenEvent
from tests.helpers.command_line import Cli
from tests.helpers.terminal import COLOURED, in_terminal

ACCEPTED = "\x1b[4;32m"


@pytest.fixture
def options(cli: Cli) -> tuple[str, ...]:
    models = ("--model", cli.target, "--draft-model", cli.draft, "--policy", "fixed")
    return ("generate", *models, "--prompt", "def add", "--temperature", "0", "--max-tokens", "24")


def test_text_is_coloured_by_origin(
    cli: Cli, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = cli.json("--temperature", "0")
    assert "accepted" in content["origins"]
    shown = in_terminal(monkeypatch, *options)
    assert ACCEPTED in shown
    assert len(COLOURED.sub("", shown)) == len(f"def add{content['text']}\n")


def test_the_prompt_is_echoed_dim(
    cli: Cli, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert in_terminal(monkeypatch, *options).startswith("\x1b[2mdef add\x1b[0m")
    plain = in_terminal(
        monkeypatch, "generate", "--model", cli.target, "--no-speculative", "--prompt", "def add"
    )
    assert plain.startswith("\x1b[2mdef add\x1b[0m")
    # A pipe carries the model's text alone.
    assert "def add" not in cli.generate("--prompt", "def add", "--temperature", "0").stdout


@pytest.mark.parametrize(("no_color", "term"), [("1", "xterm"), ("", "dumb")])
def test_origin_is_marked_where_there_is_no_colour(
    cli: Cli,
    options: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    no_color: str,
    term: str,
) -> None:
    content = cli.json("--temperature", "0")
    monkeypatch.setenv("NO_COLOR", no_color)
    shown = in_terminal(monkeypatch, *options, term=term)
    assert ACCEPTED not in shown
    text = COLOURED.sub("", shown).removeprefix("def add")
    assert "«" in text
    assert text.count("«") == text.count("»")
    unmarked = re.sub("[«»¦‹›]", "", text)
    assert len(unmarked) == len(content["text"]) + 1


def test_json_stays_plain_in_a_terminal(
    options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = in_terminal(monkeypatch, *options, "--json", "--max-tokens", "4")
    assert len(json.loads(shown)["token_ids"]) == 4
    assert "\x1b" not in shown


def consoles(**others: Any) -> tuple[Console, io.StringIO, Console, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    settings: Any = {"force_terminal": True, "color_system": "standard", "width": 80} | others
    return Console(file=out, **settings), out, Console(file=err, **settings), err


@pytest.mark.parametrize("no_color", [True, False])
def test_legend_names_every_origin_on_one_line(no_color: bool) -> None:
    console, _, stderr, err = consoles(no_color=no_color)
    TerminalOutput(console, stderr).start()
    [line] = COLOURED.sub("", err.getvalue()).splitlines()
    assert len(line) <= 80
    assert all(origin in line for origin in Origin)
    assert ("«accepted" in line) == no_color


def test_origins_differ_without_their_colours() -> None:
    console, *_ = consoles(no_color=True)
    styles = [console.get_style(style) for style in STYLES.values()]
    assert len({(style.bold, style.underline, style.underline2) for style in styles}) == len(Origin)


def test_spaces_are_not_underlined() -> None:
    console, out, stderr, _ = consoles()
    output = TerminalOutput(console, stderr)
    output.event(TokenEvent(0, 0, Origin.ACCEPTED, "\n    return a"))
    underlined = re.findall(re.escape(ACCEPTED) + "(.*?)\x1b", out.getvalue())
    assert underlined == ["return", "a"]


def test_marks_close_at_the_end_of_a_line() -> None:
    console, out, stderr, _ = consoles(no_color=True)
    output = TerminalOutput(console, stderr)
    for text, origin in (
        ("a b", Origin.ACCEPTED),
        (" c\n\nd", Origin.ACCEPTED),
        ("e", Origin.BONUS),
    ):
        output.event(TokenEvent(0, 0, origin, text))
    output.event(TokenEvent(0, 0, Origin.RECOVERED, " f"))
    output.write(" g\n", Origin.PLAIN)
    assert out.getvalue() == "«a b c»\n\n«d»‹e›¦ f¦ g\n"


def test_a_long_prompt_is_shortened() -> None:
    console, out, stderr, _ = consoles(no_color=True)
    output = TerminalOutput(console, stderr)
    output.prompt("a" * 5000 + "\x1b[2J", apart=True)
    output.start()
    shown = COLOURED.sub("", out.getvalue())
    assert len(shown) < 2100
    assert "[… 3004 characters …]" in shown
    assert shown.endswith("a\u241b[2J\n\n")


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
