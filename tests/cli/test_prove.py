"""`forerun prove`: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from forerun.core import Draft, Exactness
from forerun.engine.parts import Parts
from forerun.engine.scheduler import Scheduler
from forerun.models.zoo import PACKAGED
from forerun.verification import RULES
from forerun.verification.decision import Decision
from forerun.verification.token import TokenRule
from tests.helpers.command_line import Cli, Write
from tests.helpers.refusals import refused

FEW = ("--num-tokens", "400", "--output-tokens", "20", "--equality-prompts", "2")
UNENUMERATED = ("--part", "statistics", "--part", "equality")
QUESTIONS = [{"prompt": "def add"}, {"turns": ["return a + b", "next"]}, {"question": "def a("}]


@pytest.fixture
def prompts(write: Write) -> str:
    return write("prompts.jsonl", "\n".join(json.dumps(line) for line in QUESTIONS))


@pytest.fixture
def prove(cli: Cli, prompts: str) -> Any:
    def run(*args: str) -> Any:
        pair = ("--model", cli.target, "--draft-model", cli.draft, "--batch-size", "4")
        return cli.run("prove", *pair, "--prompts", prompts, *FEW, *args)

    return run


def test_the_object(prove: Any) -> None:
    """Beside that of enumeration, which `tests/golden/prove-json.txt` has."""
    result = prove("--json", "--temperature", "0.8", "--presence-penalty", "0.3", *UNENUMERATED)
    content = json.loads(result.stdout)
    assert result.exit_code == 0, result.stdout
    assert content["passed"] is True
    assert content["level"] == "bitwise"
    assert content["rule"] == "auto"
    assert content["statistics"]["looks"][0]["rules"] == ["block"]
    assert content["settings"]["temperature"] == 0.8
    assert content["settings"]["presence_penalty"] == 0.3
    assert content["settings"]["method"] == "draft_model"
    assert "kv_recent" not in content["settings"]
    assert content["settings"]["num_prompts"] == 3
    assert content["settings"]["kv_dtype"] == "auto"
    assert content["settings"]["prefix_reuse"] is True
    look = content["statistics"]["looks"][0]
    assert look["num_tokens"] == 400
    assert look["num_outputs"] == 20
    assert 0 < content["statistics"]["detection_limit"] < 1
    names = [test["name"] for test in look["tests"]]
    assert {"emitted, by rank", "drafted, by id", "path ends", "recovered, by rank"} <= {*names}
    modes = content["equality"]["modes"]
    assert [mode["name"] for mode in modes] == ["greedy", "seeded"]
    assert all(mode["identical"] == mode["prompts"] == 2 for mode in modes)


@pytest.mark.parametrize("reuse", [True, False])
def test_prefix_reuse_is_an_option(
    prove: Any, monkeypatch: pytest.MonkeyPatch, reuse: bool
) -> None:
    asked: list[bool] = []

    class Watched(Scheduler):
        def __init__(self, parts: Parts, num_rows: int, prefix_reuse: bool) -> None:
            asked.append(prefix_reuse)
            super().__init__(parts, num_rows, prefix_reuse)

    monkeypatch.setattr("forerun.engine.engine.Scheduler", Watched)
    flag = "--prefix-reuse" if reuse else "--no-prefix-reuse"
    result = prove("--json", "--part", "equality", flag)
    assert asked == [reuse]
    assert json.loads(result.stdout)["settings"]["prefix_reuse"] is reuse


def test_the_same_settings_give_the_same_figures(prove: Any) -> None:
    part = ("--json", "--part", "statistics")
    first, again, other = (
        json.loads(prove(*part, "--seed", seed).stdout)["statistics"]["looks"][0]["tests"]
        for seed in ("1", "1", "2")
    )
    assert first == again != other


def test_people_see_all_parts_and_the_outcome(prove: Any, few_cases: None) -> None:
    result = prove("--rejection-sample-method", "token")
    for words in ("By enumeration", "By statistics", "By equality", "would have been detected"):
        assert words in result.stdout
    assert "No defect was found." in result.stdout
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize("rule", ["token", pytest.param("coupled", marks=pytest.mark.slow)])
def test_other_rules(prove: Any, rule: str) -> None:
    content = json.loads(prove("--json", *UNENUMERATED, "--rejection-sample-method", rule).stdout)
    assert content["passed"] is True
    assert content["rule"] == rule


def test_greedy_is_a_matter_of_equality(prove: Any) -> None:
    content = json.loads(prove("--json", *UNENUMERATED, "--temperature", "0").stdout)
    assert content["passed"] is True
    assert content["statistics"] is None
    assert "equality" in content["notes"][0]
    assert [mode["name"] for mode in content["equality"]["modes"]] == ["greedy"]


def test_prompt_lookup(cli: Cli, prompts: str) -> None:
    result = cli.run(
        "prove",
        "--model",
        cli.target,
        "--method",
        "ngram",
        "--prompts",
        prompts,
        *FEW,
        "--json",
        *UNENUMERATED,
    )
    content = json.loads(result.stdout)
    assert content["passed"] is True
    assert set(content["statistics"]["looks"][0]["rules"]) <= {"token"}


def test_parts_alone(prove: Any) -> None:
    content = json.loads(prove("--json", "--part", "equality").stdout)
    assert content["equality"]["modes"]
    assert content["enumeration"] is None
    assert content["statistics"] is None


class Loose(TokenRule):
    """Emits the most likely token where it should draw one."""

    name = "loose"

    def decide(self, draft: Draft, target_probs: Tensor) -> Decision:
        right = super().decide(draft, target_probs)
        top = torch.zeros_like(right.emit).scatter_(1, right.emit.argmax(-1, keepdim=True), 1.0)
        return replace(right, emit=top)


class Admits(TokenRule):
    """Exact, but says that it is not."""

    name, exactness = "admits", Exactness.APPROXIMATE


def test_a_defect_ends_with_one(
    prove: Any, monkeypatch: pytest.MonkeyPatch, few_cases: None
) -> None:
    monkeypatch.setitem(RULES, "loose", Loose)
    rule = ("--rejection-sample-method", "loose")
    result = prove("--json", *rule)
    content = json.loads(result.stdout)
    assert result.exit_code == 1
    assert content["passed"] is False
    assert not content["enumeration"]["passed"]
    assert not content["statistics"]["passed"]
    assert len(content["statistics"]["looks"]) == 2
    assert "A defect was found" in prove(*rule, "--part", "statistics").stdout


def test_an_approximation_is_named_and_ends_with_one(
    prove: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RULES, "admits", Admits)
    rule = ("--rejection-sample-method", "admits", "--part", "statistics")
    result = prove("--json", *rule)
    content = json.loads(result.stdout)
    assert result.exit_code == 1
    assert content["passed"] is False
    assert content["level"] == "approximate"
    assert content["statistics"]["passed"] is True
    assert "approximate by design" in prove(*rule).stdout


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"prompt": "a"}\n{broken', "line 2 is not JSON"),
        (b'{"other": 1}', "holds no question"),
        (b'{"turns": []}', "holds no question"),
        (b'"ok"\n7', "line 2 is not an object"),
    ],
)
def test_files_that_hold_no_prompts(cli: Cli, write: Write, content: bytes, words: str) -> None:
    path = write("prompts.jsonl", content)
    refused(cli.run("prove", "--model", cli.target, "--prompts", path), words)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--prompts", "nowhere.jsonl"), "nowhere.jsonl cannot be read"),
        (("--level", "0"), "level"),
        (("--level", "nan"), "level"),
        (("--level", "1"), "(0, 1)"),
        (("--temperature", "0", "--part", "statistics"), "nothing to do"),
        (("--certificate", "/"), "a directory"),
        (("--certificate", "nowhere/certificate.md"), "create it first"),
        (("--num-tokens", "0"), "--num-tokens is 0"),
        (("--output-tokens", "1"), "--output-tokens is 1"),
        (("--output-tokens", "99999"), "context"),
        (("--part", "belief"), "part 'belief'"),
        (("--seed", "99999999999999999999"), "seed"),
        (("--method", "nothing"), "nothing"),
        (("--max-tokens", "5"), "--max-tokens"),
        (("--max-context", "10"), "context"),
        (("--prompt-lookup-max", "3"), "not read by method"),
    ],
)
def test_wrong_use(prove: Any, args: tuple[str, ...], words: str) -> None:
    refused(prove(*args), words)


def test_without_the_zoo_other_models_need_prompts(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = PACKAGED["zoo"]._replace(package="no_such_package")
    monkeypatch.setitem(PACKAGED, "zoo", missing)
    refused(cli.run("prove", "--model", cli.target), "no prompts", "--prompts")
    refused(cli.run("prove", "--model", "zoo"), "'zoo'", "not installed", "./zoo")


def test_plain_text_is_one_prompt_a_line(cli: Cli, write: Write) -> None:
    path = write("prompts.txt", "def add\n\nreturn a\n")
    result = cli.run(
        *("prove", "--model", cli.target, "--draft-model", cli.draft, "--prompts", path),
        *(*FEW, "--json", "--part", "statistics"),
    )
    assert json.loads(result.stdout)["settings"]["num_prompts"] == 2
