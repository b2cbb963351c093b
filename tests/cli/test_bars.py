"""Progress bars: in a terminal alone, for what takes its time, and gone when it is done."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from forerun.cli import bars as module
from forerun.cli.bars import bars
from forerun.models import load_model
from forerun.progress import report, watched_by
from tests.helpers.command_line import Cli, Write
from tests.helpers.terminal import in_terminal

CLEARED = "\x1b[2K"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DELAY", 0.0)
    monkeypatch.setattr(module, "PAUSE", 0.0)


def console(**settings: Any) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=80, **({"force_terminal": True} | settings)), out


def test_work_that_reports_has_a_bar() -> None:
    terminal, out = console()
    with bars(terminal):
        report("loading a model", 1, 4)
        report("proving", 1, 2)
        report("loading a model", 3, 4)
    assert "loading a model" in out.getvalue()
    assert " 75%" in out.getvalue()
    assert "proving" in out.getvalue()
    assert out.getvalue().endswith(f"{CLEARED}\x1b[1A{CLEARED}")
    report("nobody watches", 1, 1)
    assert "nobody" not in out.getvalue()


def test_no_bar_stands_at_its_end() -> None:
    terminal, out = console()
    with bars(terminal):
        report("writing", 1, 2)
        report("writing", 2, 2)
        before = len(out.getvalue())
        report("training", 1, 4)
        after = out.getvalue()[before:]
    assert "training" in after
    assert "writing" not in after


def test_what_is_done_soon_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DELAY", 1e9)
    terminal, out = console()
    with bars(terminal):
        report("loading", 1, 1)
    assert out.getvalue() == ""


def test_bars_are_not_drawn_at_every_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE", 1e9)
    terminal, out = console()
    with bars(terminal):
        for done in range(99):
            report("loading", done, 99)
    assert "  0%" in out.getvalue()
    assert " 98%" not in out.getvalue()


def test_no_bars_outside_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings, term in (({"force_terminal": False}, "xterm"), ({}, "dumb")):
        monkeypatch.setenv("TERM", term)
        terminal, out = console(**settings)
        with bars(terminal) as show:
            report("loading", 1, 2)
            show("loading", 1, 2)
        assert out.getvalue() == ""


def test_an_interruption_clears_them() -> None:
    terminal, out = console()

    def interrupted() -> None:
        with bars(terminal):
            report("loading", 1, 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert out.getvalue().endswith(CLEARED)
    assert out.getvalue().count("\x1b[?25l") == out.getvalue().count("\x1b[?25h")  # the cursor


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_loading_is_reported_to_its_end(cli: Cli, backend: str) -> None:
    seen: list[tuple[str, int, int]] = []
    with watched_by(lambda *progress: seen.append(progress)):
        load_model(cli.target, device="cpu", backend=backend)
    counts = [done for _, done, _ in seen]
    assert len(seen) > 5
    assert counts == sorted(counts)
    assert seen[-1][1] == seen[-1][2]
    assert all("target" in what for what, _, _ in seen)


def test_generate_shows_the_loading_of_both_models(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = ("--model", cli.target, "--draft-model", cli.draft)
    run = ("generate", *models, "--prompt", "a", "--max-tokens", "2")
    shown = in_terminal(monkeypatch, *run, talk=True)
    assert shown.count("loading") >= 2
    assert "starting …\r\x1b[2K" in shown
    quiet = cli.generate("--prompt", "a", "--json")
    assert "loading" not in quiet.output
    json.loads(quiet.stdout)


def test_prove_shows_its_parts(cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    few = ("--num-tokens", "200", "--output-tokens", "20", "--equality-prompts", "1")
    files = ("--model", cli.target, "--draft-model", cli.draft, "--prompts", write("a.txt", "def"))
    parts = ("--part", "statistics", "--part", "equality")
    shown = in_terminal(monkeypatch, "prove", *files, *few, *parts, talk=True)
    for what in ("loading", "statistics", "equality"):
        assert what in shown
