"""The same options in the words of other tools, in short, and with underscores."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from typing import Any

import click
import pytest

from forerun.cli import EXAMPLE
from forerun.cli.main import application, every_command
from forerun.cli.options import Command
from forerun.engine.resolve import LoadOptions
from forerun.foreign import ADVICE, TAKEN, advice, own_flag
from tests.helpers import forked
from tests.helpers.command_line import Cli

PROMPT = ("--prompt", "def add")
USUAL = ("--temperature", "0", "--json", "--policy", "fixed")
COUNTS = ("--num-draft-tokens", "--draft-max", "--draft", "--spec-draft-n-max", "--gamma")


def commands() -> dict[str, Command]:
    """All that run something, by the words that call them."""
    every = ((" ".join(words), command) for words, command in every_command(application))
    return {name: command for name, command in every if isinstance(command, Command)}


def result_of(cli: Cli, *args: str) -> dict[str, Any]:
    """What `generate` says with these options, without the times."""
    result = cli.run("generate", *args, *USUAL)
    assert result.exit_code == 0, result.output
    content: dict[str, Any] = json.loads(result.stdout)
    kept = ("token_ids", "method", "draft_model", "prompt_tokens")
    counts = {name: content["stats"][name] for name in ("num_drafts", "num_draft_tokens")}
    return {**{name: content[name] for name in kept}, **counts}


def test_a_prompt_is_an_argument(cli: Cli) -> None:
    model = ("--model", cli.target, "--max-tokens", "9")
    assert result_of(cli, "def add", *model) == result_of(cli, *PROMPT, *model)


def test_short_flags(cli: Cli) -> None:
    short = result_of(cli, "-m", cli.target, "-md", cli.draft, "-p", "def add", "-n", "9")
    model = ("--model", cli.target, "--draft-model", cli.draft)
    assert short == result_of(cli, *model, *PROMPT, "--max-tokens", "9")
    assert len(short["token_ids"]) == 9


@pytest.mark.parametrize("flag", COUNTS)
def test_flags_of_other_tools_count(cli: Cli, flag: str) -> None:
    model = (
        "--model",
        cli.target,
        "--assistant_model",
        cli.draft,
        *PROMPT,
        "--max_new_tokens",
        "9",
    )
    ours = result_of(cli, *model, "--num-speculative-tokens", "2")
    assert result_of(cli, *model, flag, "2") == ours
    assert result_of(cli, *model, f"{flag}=2") == ours
    assert result_of(cli, *model, flag.replace("-", "_").replace("__", "--"), "2") == ours
    assert result_of(cli, *model, flag, "3") != ours


def test_what_was_taken_is_said_once(cli: Cli) -> None:
    options = ("--model", cli.target, *PROMPT, "--raw", "-n", "2", "--temp", "1", "--temp", "0")
    result = cli.run("generate", *options, "--speculative_algorithm", "NGRAM", "--json")
    assert result.stderr == (
        "forerun: taken --temp as --temperature, --speculative_algorithm as --method\n"
    )
    assert json.loads(result.stdout)["method"] == "ngram"


def test_a_value_is_never_taken_for_a_flag(cli: Cli) -> None:
    result = cli.run("generate", "--model", cli.target, "--prompt", "--temp", "-n", "1", "--json")
    assert result.exit_code == 0
    assert "taken" not in result.stderr
    assert json.loads(result.stdout)["prompt_tokens"] > 1


@pytest.mark.parametrize("name", commands())
def test_every_flag_of_every_command_takes_underscores(name: str) -> None:
    command, whole = commands()[name], click.Context(application, **application.context_settings)
    for param in command.params:
        for flag in (*param.opts, *param.secondary_opts):
            if flag.startswith("--") and "-" in flag[2:]:
                context = command.make_context(name, [], whole, resilient_parsing=True)
                parser = command.make_parser(context)
                with context:
                    written = "--" + flag[2:].replace("-", "_")
                    parsed = parser.parse_args([written, "1"] if param.nargs else [written])
                assert param in parsed[2], flag


def test_the_tables_lead_to_flags_that_exist() -> None:
    flags = {flag for command in commands().values() for flag in command._flags}
    arguments = {name.replace("_", "-") for name in LoadOptions.__annotations__}
    assert set(TAKEN.values()) <= flags | arguments
    assert {name for names, _ in ADVICE.values() for name in names} <= flags
    simulate = commands()["simulate"]._flags
    assert own_flag("draft", simulate) == "draft"
    assert advice("gamma", simulate) == "It is called '--lengths' here."


@pytest.mark.parametrize("command", ["generate", "prove", "serve"])
def test_vllms_object_is_answered_with_flags(cli: Cli, command: str) -> None:
    result = cli.run(command, "--speculative-config", '{"method": "ngram"}')
    assert result.exit_code == 2
    assert "It is called '--method' here, and its other keys are flags too" in result.stderr
    flags = set(re.findall(r"'--([a-z-]+)'", advice("speculative-config", {"method"}) or ""))
    assert flags == {"method", "draft-model", "draft-revision"} <= {*commands()[command]._flags}


def test_vllms_object_has_no_equivalent_without_a_method(cli: Cli) -> None:
    result = cli.run("simulate", "--speculative-config", '{"method": "ngram"}')
    assert result.exit_code == 2
    assert "called" not in result.stderr


@pytest.mark.parametrize("name", commands())
def test_every_section_of_a_help_has_a_name(cli: Cli, name: str) -> None:
    text = cli.run(*name.split(), "--help").stdout
    if "--help-all" in text:
        text = cli.run(*name.split(), "--help-all").stdout
    assert re.search(r"^\w.*:$", text, re.MULTILINE)
    assert not re.search(r"^ *:$", text, re.MULTILINE)


@pytest.mark.parametrize("threads", ["100000", "9" * 400])
def test_more_threads_than_cores_are_clamped(
    cli: Cli, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forerun.models.cpu.threads._asked", [])
    result = cli.generate(*PROMPT, "--temperature", "0", "--threads", threads, "--json")
    assert result.exit_code == 0
    cores = os.cpu_count()
    assert f"this process may use {cores} cores, which are used" in result.stderr
    assert json.loads(result.stdout)["hardware"]["threads"] <= (cores or 1)
    assert len(result.stderr.splitlines()[0]) < 140


def test_a_prompt_that_is_missing_in_a_terminal() -> None:
    master, slave = pty.openpty()
    done = forked.run(["generate"], slave)
    os.close(master)
    os.close(slave)
    assert (done.returncode, done.stdout) == (2, "")
    assert EXAMPLE in done.stderr


def test_commands_without_arguments(cli: Cli) -> None:
    for name in ("info", "simulate"):
        result = cli.run(name)
        assert result.exit_code == 0
        assert commands()[name].example in result.stderr
        assert commands()[name].example not in cli.run(name, "--json").stderr
    assert "forerun prove --model" in commands()["prove"].example
    assert commands()["prove"]._assumed
    assert commands()["tune"]._assumed


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "forerun", "--version"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout.startswith("forerun ")


@pytest.mark.parametrize("name", ["bench", "chat", "generate"])
def test_the_help_shows_what_people_use_first(cli: Cli, name: str) -> None:
    command = commands()[name]
    options = {str(param.name): param for param in command.params}
    assert {*command._common} <= options.keys()
    short, whole = (cli.run(name, flag).stdout for flag in ("--help", "--help-all"))
    assert len(short.splitlines()) < 60 < len(whole.splitlines())
    for known, option in options.items():
        if isinstance(option, click.Option):
            flag = re.compile(rf"{option.opts[-1]}\b(?!-)")
            assert flag.search(whole), known
    listed = re.findall(r"^  (?:-\w+, )?--(\S+)", short, re.MULTILINE)
    named = {known.replace("_", "-") for known in (*command._common, "help", "help_all")}
    assert {entry.partition("/")[0] for entry in listed} == named
