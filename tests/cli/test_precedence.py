"""Flags beat variables, variables beat the file, the file beats defaults."""

from __future__ import annotations

import dataclasses
import inspect
from importlib.machinery import ModuleSpec

import pytest

from forerun.cli.generate import USUAL, GenerateRequest
from forerun.cli.main import application, every_command
from forerun.engine import options
from forerun.engine.config import SpeculativeConfig
from forerun.engine.load import load
from forerun.engine.options import OWN_SECTIONS
from forerun.engine.resolve import choose
from forerun.flags import flags_of
from forerun.models.zoo import PACKAGED
from forerun.params import SamplingParams
from tests.helpers.command_line import Cli, Write, generate_request
from tests.helpers.refusals import refused

GREEDY = ("--temperature", "0", "--ignore-eos")


def count(cli: Cli, *options: str) -> int:
    """Tokens that come out, without a limit among the flags."""
    result = cli.run(
        "generate", "--model", cli.target, "--prompt", "a", *GREEDY, "--no-speculative", *options
    )
    assert result.exit_code == 0, result.output
    return int(result.stderr.split("tokens")[1].split("after")[0])


def test_order_of_places(cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("options.toml", "max-tokens = 5\n")
    assert count(cli, "--config", file) == 5
    monkeypatch.setenv("FORERUN_MAX_TOKENS", "6")
    assert count(cli, "--config", file) == 6
    assert count(cli, "--config", file, "--max-tokens", "7") == 7
    monkeypatch.delenv("FORERUN_MAX_TOKENS")
    monkeypatch.setenv("FORERUN_CONFIG", file)
    assert count(cli) == 5


def test_file_takes_every_kind_of_value(cli: Cli, write: Write) -> None:
    ids = cli.json(*GREEDY)["token_ids"]
    file = write(
        "options.toml",
        f"""
        temperature = 0
        ignore_eos = true
        policy = "fixed"
        stop = ["zzzz", "yyyy"]
        logit-bias = ["7=0.0"]
        banned-token-ids = [{ids[1]}]
        """,
    )
    content = cli.json("--config", file)
    assert ids[1] not in content["token_ids"]
    assert content["token_ids"][0] == ids[0]
    assert len(content["token_ids"]) == len(ids)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-tokns = 3", ["max-tokns", "'max-tokens'"]),
        ("[sampling]\nseed = 3", ["sampling"]),
        ("[seed]\nvalue = 3", ["seed", "table"]),
        ("seed = [1, 2]", ["seed", "list"]),
        ("seed = 1.5", ["--seed"]),
        ("top-k = true", ["--top-k"]),
        ("seed = ", ["options.toml"]),
        ("config = 'other.toml'", ["config"]),
        ("text = 'hello'", ["text"]),
    ],
)
def test_wrong_files(cli: Cli, write: Write, text: str, words: list[str]) -> None:
    file = write("options.toml", text)
    refused(cli.generate("--prompt", "a", "--config", file), *words)


def test_missing_file(cli: Cli) -> None:
    refused(cli.generate("--prompt", "a", "--config", "/no/such.toml"), "/no/such.toml")


def test_a_stronger_place_settles_a_contradiction(
    cli: Cli, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write("prompt.txt", "")
    monkeypatch.setenv("FORERUN_PROMPT_FILE", file)
    assert cli.json(*GREEDY)["prompt_tokens"] > 0
    monkeypatch.setenv("FORERUN_DRAFT_MODEL", cli.draft)
    assert count(cli, "--max-tokens", "3") == 3


def test_a_variable_for_another_method_yields_to_a_flag(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_PROMPT_LOOKUP_MAX", "9")
    assert cli.json(*GREEDY)["method"] == "draft_model"
    monkeypatch.setenv("FORERUN_DRAFT_MODEL", cli.draft)
    result = cli.run("generate", "--model", cli.target, "--prompt", "a")
    refused(result, "--prompt-lookup-max", "'draft_model'")
    result = cli.run("generate", "--model", cli.target, "--prompt", "a", "--method", "suffix")
    refused(result, "takes no draft model")


def test_a_variable_for_another_policy_yields_to_a_flag(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_LONGEST_DRAFT", "5")
    assert cli.json(*GREEDY, "--policy", "fixed")["method"] == "draft_model"
    assert cli.json(*GREEDY, "--policy", "adaptive")["method"] == "draft_model"
    refused(
        cli.generate("--prompt", "a", "--policy", "adaptive", "--num-speculative-tokens", "6"),
        "[2, 5]",
    )
    monkeypatch.setenv("FORERUN_POLICY", "fixed")
    result = cli.run("generate", "--model", cli.target, "--prompt", "a")
    refused(result, "--longest-draft", "policy 'adaptive'")


def test_variables_hold_one_stop_string(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = cli.json(*GREEDY)
    # Split at its space, it would end the text at the first character.
    monkeypatch.setenv("FORERUN_STOP", f"{whole['text'][0]} {'never' * 9}")
    assert cli.json(*GREEDY)["text"] == whole["text"]


def test_every_field_has_a_flag_with_its_default() -> None:
    flags = {flag.name for flag in flags_of(GenerateRequest)}
    # A hook is code, which no flag can carry; the draft model's revision is not the target's.
    assert _fields(SamplingParams) - flags == {"mask"}
    assert _fields(SpeculativeConfig) - flags == {"options"}
    assert {"draft_model", "draft_revision"} <= flags
    for kind in OWN_SECTIONS.values():
        assert _fields(kind) <= flags
    request = generate_request()
    assert (request.sampling, USUAL) == ({}, SamplingParams())
    assert request.speculation == SpeculativeConfig()
    choice = choose(request.speculation, "zoo")
    behind = {"cascade": ("suffix", "draft_model")}
    assert choice.config == SpeculativeConfig(method="cascade", model="zoo-draft", options=behind)
    assert choice.note is None


def _fields(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def test_defaults_are_those_of_load() -> None:
    options = {flag.name: flag for flag in flags_of(GenerateRequest)}
    parameters = inspect.signature(load).parameters
    for name in ("model", "dtype", "device"):
        assert options[name].default == parameters[name].default


@pytest.mark.parametrize(("package", "name"), [(ModuleSpec("x", None), "smollm2"), (None, "zoo")])
def test_the_default_model_is_smollm2_where_it_is_installed(
    package: ModuleSpec | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = {PACKAGED["smollm2"].package: package}
    monkeypatch.setattr(options, "find_spec", installed.__getitem__)
    assert options.default_model() == name


def test_every_command_has_the_same_default_model() -> None:
    """A training names its model, and a head's own files name its target."""
    defaults = {
        " ".join(words): param.default
        for words, command in every_command(application)
        for param in command.params
        if param.name == "model" and isinstance(param.default, str)
    }
    runs = ("bench", "chat", "demo", "generate", "info", "prove", "roofline", "tune")
    assert {*runs, "serve", "train data"} == defaults.keys()
    assert set(defaults.values()) == {options.DEFAULT_MODEL}


def test_a_mistyped_variable_is_noticed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_TEMPRATURE", "0")
    result = cli.generate("--prompt", "a", "--temperature", "0")
    assert result.exit_code == 0
    assert "did you mean FORERUN_TEMPERATURE?" in result.stderr
