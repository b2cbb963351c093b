"""`--speculative-config`: vLLM's object says what our flags say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forerun.engine.config import SpeculativeConfig
from forerun.errors import ConfigError
from tests.helpers.command_line import Cli, Write, generate_request
from tests.helpers.refusals import refused


def config(*args: str) -> SpeculativeConfig:
    return generate_request("--model", "some/model", *args).speculation


def asked(content: dict[str, Any]) -> tuple[str, str]:
    return "--speculative-config", json.dumps(content)


@pytest.mark.parametrize(
    ("content", "flags"),
    [
        (
            {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 7},
            ("--method", "ngram", "--num-speculative-tokens", "5", "--prompt-lookup-max", "7"),
        ),
        (
            {"model": "some/draft", "revision": "v1", "num_speculative_tokens": 3},
            ("-md", "some/draft", "--draft-revision", "v1", "--num-speculative-tokens", "3"),
        ),
        (
            {"method": "cascade", "cascade": ["ngram", "suffix"], "policy": "fixed", "tree": None},
            ("--method", "cascade", "--cascade", "ngram,suffix", "--policy", "fixed"),
        ),
        ({"method": "NGRAM"}, ("--method", "ngram")),
        ({}, ()),
    ],
    ids=str,
)
def test_the_object_is_as_the_flags(content: dict[str, Any], flags: tuple[str, ...]) -> None:
    assert config(*asked(content)) == config(*flags)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ["--speculative-config", "not JSON"]),
        ('{"method": "ngram", "method": "suffix"}', ["--speculative-config", "given twice"]),
        ("[1]", ["[1]", '{"method": "ngram"}']),
        ("ngram", ["not JSON"]),
        ('{"methd": "ngram"}', ["methd", "'method'", "Known:", "prompt_lookup_max"]),
        ('{"method": {"a": 1}}', ["method is {'a': 1}", "one of"]),
        ('{"policy": 5}', ["policy is 5"]),
        ('{"policy": ["auto"]}', ["policy is ('auto',)"]),
        ('{"model": 5}', ["draft_model is 5"]),
        ('{"num_speculative_tokens": [1, 2]}', ["num_speculative_tokens", "an integer"]),
        (
            '{"num_speculative_tokens": "many"}',
            ["num_speculative_tokens", "'many' is not a valid integer"],
        ),
        ('{"num_speculative_tokens": 1000}', ["num_speculative_tokens", "[1, 64]"]),
        ('{"method": "eagle"}', ["'eagle'", "Known"]),
        ("[" * 100_000, ["nested too deep"]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_wrong_objects(cli: Cli, text: str, words: list[str]) -> None:
    options = ("--model", cli.target, "--prompt", "a", "--speculative-config", text)
    refused(cli.run("generate", *options), *words)


def test_the_stronger_source_counts(monkeypatch: pytest.MonkeyPatch, write: Write) -> None:
    with pytest.raises(ConfigError, match="--speculative-config and --method exclude each other"):
        config(*asked({"method": "ngram"}), "--method", "suffix")
    monkeypatch.setenv("FORERUN_METHOD", "suffix")
    assert config(*asked({"method": "ngram"})).method == "ngram"
    monkeypatch.delenv("FORERUN_METHOD")
    monkeypatch.setenv("FORERUN_SPECULATIVE_CONFIG", '{"method": "ngram"}')
    assert config().method == "ngram"
    assert config("--method", "suffix").method == "suffix"
    monkeypatch.delenv("FORERUN_SPECULATIVE_CONFIG")
    file = write("a.toml", """speculative-config = '{"method": "ngram"}'""")
    assert config("--config", file).method == "ngram"


def test_it_needs_speculation(cli: Cli) -> None:
    result = cli.run("generate", "-m", cli.target, "-p", "a", "--no-speculative", *asked({}))
    refused(result, "--speculative-config", "--no-speculative")


def test_prove_takes_it_too(cli: Cli) -> None:
    refused(cli.run("prove", "-m", cli.target, *asked({"method": "ngrm"})), "'ngram'")
