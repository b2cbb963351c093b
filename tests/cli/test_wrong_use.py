"""Every wrong use is one line on standard error, exit code 2, and nothing on standard output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from forerun.cli.main import application, every_command
from forerun.cli.requests import Value
from tests.helpers.command_line import Cli, Write
from tests.helpers.refusals import refused

PROMPT = ("--prompt", "def add")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--prompt", ""), ["prompt is empty"]),
        (("--prompt-file", "/no/such/file"), ["/no/such/file", "no such file"]),
        (("--prompt-file", "/"), ["directory"]),
        ((*PROMPT, "--prompt-file", "x"), ["--prompt", "--prompt-file", "exclude"]),
        ((*PROMPT, "--temperature", "-1"), ["temperature", "[0, 100]"]),
        ((*PROMPT, "--temperature", "nan"), ["temperature"]),
        ((*PROMPT, "--temperature", "hot"), ["--temperature", "hot"]),
        ((*PROMPT, "--top-p", "0"), ["--top-p", "(0, 1]"]),
        ((*PROMPT, "--max-tokens", "0"), ["--max-tokens"]),
        ((*PROMPT, "--num-speculative-tokens", "0"), ["--num-speculative-tokens"]),
        ((*PROMPT, "--num-speculative-tokens", "2.5"), ["--num-speculative-tokens"]),
        ((*PROMPT, "--threads", "0"), ["--threads"]),
        ((*PROMPT, "--compare-rounds", "0"), ["--compare-rounds"]),
        ((*PROMPT, "--compare-rounds", "2"), ["--compare"]),
        ((*PROMPT, "--policy", "adptive"), ["policy", "'adaptive'"]),
        ((*PROMPT, "--rejection-sample-method", "blok"), ["'block'"]),
        ((*PROMPT, "--draft-sample-method", "greedi"), ["'greedy'"]),
        ((*PROMPT, "--logprobs-mode", "row", "--logprobs", "1", "--json"), ["'raw'"]),
        (
            (*PROMPT, "--logprobs-mode", "processed"),
            ["--logprobs-mode", "only of use with --logprobs;"],
        ),
        ((*PROMPT, "--temperature", "1e-7"), ["temperature", "use 0 for greedy"]),
        ((*PROMPT, "--num-speculative-tokens", "11", "--policy", "adaptive"), ["[2, 10]"]),
        ((*PROMPT, "--prompt-lookup-min", "2"), ["--prompt-lookup-min", "method 'ngram'"]),
        ((*PROMPT, "--prompt-lookup-max", "9"), ["--prompt-lookup-max", "'draft_model'"]),
        ((*PROMPT, "--revision", "main"), ["revision 'main'", "directory"]),
        ((*PROMPT, "--draft-revision", "main"), ["revision 'main'", "directory"]),
        ((*PROMPT, "--max-context", "16385"), ["--max-context", "16384"]),
        (("--prompt", "a\udcffb"), ["--prompt", "UTF-8"]),
        ((*PROMPT, "--stop", "\udcff"), ["--stop", "UTF-8"]),
        ((*PROMPT, "--draft-model", "\udcff"), ["--draft-model", "UTF-8"]),
        ((*PROMPT, "--model", ""), ["--model", "empty"]),
        ((*PROMPT, "--draft-model", ""), ["--draft-model", "empty"]),
        ((*PROMPT, "--draft-revision", ""), ["--draft-revision", "empty"]),
        ((*PROMPT, "--device", ""), ["--device", "empty"]),
        (("--prompt-file", ""), ["--prompt-file", "empty"]),
        ((*PROMPT, "--config", ""), ["--config", "empty"]),
        ((*PROMPT, "--logprobs", "2"), ["--json"]),
        ((*PROMPT, "--logit-bias", "3"), ["--logit-bias"]),
        ((*PROMPT, "--logit-bias", "3=1", "--logit-bias", "3=2"), ["--logit-bias"]),
        ((*PROMPT, "--logit-bias", "3000=1", "--json"), ["logit_bias", "3000"]),
        ((*PROMPT, "--stop-token-ids", "a,b"), ["--stop-token-ids"]),
        ((*PROMPT, "--stop", ""), ["stop"]),
        ((*PROMPT, "--no-speculative"), ["--draft-model", "--no-speculative", "exclude"]),
        ((*PROMPT, "--method", "ngram"), ["draft model"]),
        ((*PROMPT, "--dtype", "fp31"), ["'fp32'"]),
        ((*PROMPT, "--device", "cpux"), ["'cpu'"]),
        ((*PROMPT, "--max-context", "2"), ["context"]),
        ((*PROMPT, "--tempature", "1"), ["--tempature", "'--temperature'"]),
        ((*PROMPT, "--top_kk", "1"), ["'--top-k'"]),
        ((*PROMPT, "--repeat-penalty", "1"), ["'--repetition-penalty'", "whole prompt"]),
        ((*PROMPT, "--speculative-num-draft-tokens", "1"), ["does not count"]),
        ((*PROMPT, "-ngl", "99"), ["-ngl", "'--device'"]),
        ((*PROMPT, "-np", "2"), ["No such option", "-np"]),
        ((*PROMPT, "--alpha", "0.8"), ["No such option", "--alpha"]),
        ((*PROMPT, "stray"), ["the argument PROMPT", "--prompt", "exclude"]),
        (("stray", "--prompt-file", "x"), ["the argument PROMPT", "--prompt-file", "exclude"]),
        (("",), ["prompt is empty"]),
        (("what", "is", "this"), ['quote it: "what is this"']),
        (("--prompt",), ["--prompt"]),
    ],
)
def test_wrong_options(cli: Cli, options: tuple[str, ...], words: list[str]) -> None:
    refused(cli.generate(*options), *words)


@pytest.mark.parametrize("name", ["ngrm", "draft-model"])
def test_unknown_method(cli: Cli, name: str) -> None:
    result = cli.run("generate", "--model", cli.target, *PROMPT, "--method", name)
    refused(result, "method", "ngram", "draft_model", "Did you mean")


@pytest.mark.parametrize(
    "option", [("--draft-sample-method", "greedy"), ("--draft-dtype", "auto")], ids=str
)
def test_prompt_lookup_has_no_draft_model(cli: Cli, option: tuple[str, str]) -> None:
    for method, name in (((), "'suffix'"), (("--method", "ngram"), "'ngram'")):
        result = cli.run("generate", "--model", cli.target, *PROMPT, *method, *option)
        refused(result, option[0], name, "method 'draft_model'")


def test_an_argument_of_other_bytes(cli: Cli) -> None:
    """As a shell hands it over: bytes that are not UTF-8, in a process of its own."""
    program: list[str | bytes] = [
        sys.executable,
        "-m",
        "forerun.cli.main",
        "generate",
        "--prompt",
        b"a\xffb",
    ]
    done = subprocess.run(program, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.splitlines() == [
        b"forerun: error: Invalid value for '-p' / '--prompt': it is not UTF-8 text (character 1)."
    ]


def test_text_that_is_none(cli: Cli, write: Write) -> None:
    broken = "ä".encode("latin-1")
    refused(cli.generate("--prompt-file", write("latin", broken)), "UTF-8", "latin")
    refused(cli.generate(input=broken), "standard input", "UTF-8")
    refused(cli.generate(input=""), "empty")


def test_models_that_are_none(cli: Cli, tmp_path: Path) -> None:
    refused(cli.run("generate", *PROMPT, "--model", str(tmp_path)), "config.json")
    refused(cli.run("generate", *PROMPT, "--model", str(tmp_path / "none")), "directory")
    refused(cli.generate(*PROMPT, "--draft-model", cli.target), "itself")


def test_a_draft_that_needs_speculation_from_the_same_source(cli: Cli) -> None:
    result = cli.run("generate", "--model", cli.target, *PROMPT, "--no-speculative", "--compare")
    refused(result, "--compare", "--no-speculative")


def test_unknown_commands(cli: Cli) -> None:
    refused(cli.run("generat"), "'generate'")
    refused(cli.run("--verzion"), "'--version'")


@pytest.mark.parametrize(
    ("name", "words"),
    [("run", ["generate", "chat"]), ("pull", ["-m"])],
)
def test_a_command_of_another_tool_is_answered_by_ours(
    cli: Cli, name: str, words: list[str]
) -> None:
    refused(cli.run(name, "llama3"), repr(name), *words)


@pytest.mark.parametrize("command", [(), ("bench", "kv"), ("diffusion", "sample")], ids=str)
def test_help_is_a_word_too(cli: Cli, command: tuple[str, ...]) -> None:
    result = cli.run("help", *command)
    assert result.exit_code == 0
    assert result.stdout == cli.run(*command, "--help").stdout


def test_no_command_shows_the_help(cli: Cli) -> None:
    result = cli.run()
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Commands:" in result.stderr


@pytest.mark.parametrize("kind", [ZeroDivisionError, EOFError, PermissionError])
def test_unexpected_errors_keep_their_traceback(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    from forerun.cli import generate

    def broken(*_: Any) -> None:
        raise kind

    monkeypatch.setattr(generate, "read_prompt", broken)
    with pytest.raises(kind):
        cli.generate(*PROMPT)


def test_many_lines_become_one(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from forerun.cli import generate
    from forerun.errors import PromptError

    def refusing(*_: Any) -> None:
        raise PromptError("first\n  second")

    monkeypatch.setattr(generate, "read_prompt", refusing)
    assert refused(cli.generate(*PROMPT)) == "forerun: error: first second"


def _takes_numbers(kind: click.ParamType[Any]) -> bool:
    if not isinstance(kind, Value):
        return kind.name.startswith(("integer", "float", "list", "ids", "layers"))
    return kind.flag.inner.get("items", kind.flag.inner).get("type") in ("integer", "number")


def numeric_options() -> list[Any]:
    """Every option of every command that takes numbers; slow where an earlier command has it."""
    options, met = [], set[tuple[str, str]]()
    for words, command in every_command(application):
        for param in command.params:
            numbers = _takes_numbers(param.type)
            # --prompt-tokens cuts longer prompts, --threads counts the cores: any number will do.
            any_will_do = param.name in ("prompt_tokens", "threads")
            if isinstance(param, click.Option) and numbers and not any_will_do:
                option = (param.opts[0], param.type.name)
                slow = [pytest.mark.slow] * (option in met)
                options.append(pytest.param(words, param.opts[0], marks=slow))
                met.add(option)
    return options


@pytest.mark.parametrize(("command", "option"), numeric_options())
def test_numbers_of_four_hundred_digits(cli: Cli, command: tuple[str, ...], option: str) -> None:
    before = {"generate": PROMPT}.get(command[0], ())
    for number in ("9" * 400, "-" + "9" * 400, "9" * 5000):
        refused(cli.run(*command, *before, f"{option}={number}"))
