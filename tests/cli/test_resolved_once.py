"""Whatever a command does with a model, it looks for it, and reads what it holds, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forerun.models import checkpoint
from tests.helpers.command_line import Cli, Write

GENERATE = ("--prompt", "def add", "--temperature", "0", "--max-tokens", "4")
PROVE = ("--num-tokens", "40", "--output-tokens", "8", "--equality-prompts", "1")
PARTS = ("--part", "statistics", "--part", "equality")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """How often what was found or read, by the name of the function and of the model."""
    counted: Counter[tuple[str, str]] = Counter()

    def watch(module: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(module, name)

        def counting(what: Any, *args: Any) -> Any:
            counted[name, Path(what).name] += 1
            return original(what, *args)

        monkeypatch.setattr(module, name, counting)

    for name in ("locate", "read_config", "read_end_tokens", "read_tokenizer"):
        watch(checkpoint, name)
    return counted


@pytest.mark.parametrize("more", [(), ("--compare", "--compare-rounds", "1"), ("--tree", "auto")])
def test_generate(cli: Cli, seen: Counter[tuple[str, str]], more: tuple[str, ...]) -> None:
    assert cli.generate(*GENERATE, *more).exit_code == 0
    parts = [("locate", 1), ("read_config", 1), ("read_tokenizer", 1)]
    expected = {(part, model): n for part, n in parts for model in ("target", "draft")}
    assert seen == expected | {("read_end_tokens", "target"): 1}


def test_prove(cli: Cli, seen: Counter[tuple[str, str]], write: Write) -> None:
    prompts = write("prompts.txt", "def add\nreturn a\n")
    pair = ("--model", cli.target, "--draft-model", cli.draft)
    assert cli.run("prove", *pair, *PROVE, *PARTS, "--prompts", prompts).exit_code == 0
    assert set(seen.values()) == {1}
    assert seen["locate", "target"] == seen["locate", "draft"] == 1


def test_info(cli: Cli, seen: Counter[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    from forerun.engine import resolve

    monkeypatch.setitem(resolve.KNOWN_DRAFTS, cli.target, cli.draft)
    assert cli.run("info", cli.target).exit_code == 0
    parts = ("locate", "read_config")
    assert seen == {(part, model): 1 for part in parts for model in ("target", "draft")}


def test_the_method_is_chosen_once(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command's options to the engine's parts."""
    from forerun.cli import generate
    from forerun.engine import resolve

    chosen = Counter[str]()

    def counting(config: Any, target: str, choose: Any = resolve.choose) -> Any:
        chosen[Path(target).name] += 1
        return choose(config, target)

    monkeypatch.setattr(resolve, "choose", counting)
    monkeypatch.setattr(generate, "choose", counting)
    assert cli.generate(*GENERATE).exit_code == 0
    assert chosen == {"target": 1}
