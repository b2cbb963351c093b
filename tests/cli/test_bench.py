"""`forerun bench`: from prompts to a verdict, its files, and every refusal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forerun.bench.pairs import MeasuredPair
from forerun.bench.session import BenchSession
from forerun.files import CACHE_VARIABLE
from forerun.policies.auto import AutoPolicy
from tests.helpers.command_line import Cli, Write
from tests.helpers.refusals import refused

QUESTIONS = [
    {
        "question_id": number,
        "category": "ab"[number % 2],
        "turns": ["def add(a):", "return"][:turns],
    }
    for number, turns in enumerate((1, 2, 1))
]


@pytest.fixture
def prompts(write: Write) -> str:
    return write("mine.jsonl", "".join(json.dumps(line) + "\n" for line in QUESTIONS))


@pytest.fixture
def small(cli: Cli, prompts: str) -> tuple[str, ...]:
    pair = ("--model", cli.target, "--draft-model", cli.draft, "--method", "draft_model,suffix")
    few = (
        "--num-speculative-tokens",
        "2",
        "--temperature",
        "0",
        "--max-tokens",
        "6",
        "--ignore-eos",
        "--minutes",
        "0",
    )
    return ("bench", *pair, *few, "--prompts", prompts)


def run_json(cli: Cli, *arguments: str) -> dict[str, Any]:
    result = cli.run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    content: dict[str, Any] = json.loads(result.stdout)
    return content


def test_all_engines_have_the_precision_of_the_cache(cli: Cli, prompts: str) -> None:
    method = ("--method", "self_sparse", "--method-option", "sparse_coarse=true")
    run = ("bench", "--model", "zoo", "--prompts", prompts, *method)
    few = (
        "--num-speculative-tokens",
        "2",
        "--temperature",
        "0",
        "--max-tokens",
        "6",
        "--minutes",
        "0",
    )
    content = run_json(cli, *run, *few, "--limit", "1", "--kv-dtype", "int8")
    assert content["facts"]["engine"].endswith("kv_dtype int8")
    [whole] = [cell for cell in content["cells"] if cell["category"] == "all"]
    assert whole["identical"] == whole["comparable"] > 0
    assert "kv_dtype 'int8'" in refused(cli.run(*run, *few))
    assert "kv_dtype 'int5'" in refused(cli.run(*run, *few, "--kv-dtype", "int5"))


def test_from_prompts_to_a_verdict(cli: Cli, small: tuple[str, ...], tmp_path: Path) -> None:
    rows, page, text = (str(tmp_path / name) for name in ("rows.jsonl", "page.html", "report.md"))
    content = run_json(cli, *small, "--records", rows, "--html", page, "--markdown", text)
    whole = [cell for cell in content["cells"] if cell["category"] == "all"]
    assert {cell["setting"] for cell in whole} == {
        "draft_model draft, 2 tokens",
        "suffix, 2 tokens",
    }
    # Two turns of one question are two prompts.
    assert all(cell["pairs"] == cell["comparable"] == 4 for cell in whole)
    assert all(cell["identical"] == 4 for cell in whole)
    assert content["verdicts"][0]["advice"].startswith("too few prompts to tell")
    header, *lines = map(json.loads, Path(rows).read_text().splitlines())
    assert header["model"] == cli.target
    assert [MeasuredPair.from_dict(line).error for line in lines] == [None] * 8
    assert "too few prompts" in Path(page).read_text()
    assert "**Too few prompts" in Path(text).read_text()


def test_the_default_is_measured_warm_and_cold(
    cli: Cli, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are explained wherever the report goes, with what the warm one's policy says at the end."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(AutoPolicy, "given_up", lambda _: ["one was given up"])
    page, text = (str(tmp_path / name) for name in ("page.html", "report.md"))
    few = ("--temperature", "0", "--max-tokens", "6", "--ignore-eos", "--minutes", "0")
    run = ("bench", "--model", cli.target, "--method", "default", *few, "--prompts", prompts)
    content = run_json(cli, *run, "--html", page, "--markdown", text)
    whole = [cell for cell in content["cells"] if cell["category"] == "all"]
    assert {cell["setting"] for cell in whole} == {"default", "default, cold"}
    assert all(cell["pairs"] == cell["identical"] == 4 for cell in whole)
    assert content["facts"]["default"].startswith("is suffix")
    notes = content["remarks"]
    for words in (
        "default, cold: the first request on a",
        "default decided: ",
        "default: one was given",
    ):
        assert len([note for note in notes if note.startswith(words)]) == 1
        assert words in Path(page).read_text()
        assert words in Path(text).read_text()
        assert words in cli.run(*run, "--limit", "1").stderr


def test_turns_follow_plain_answers(cli: Cli, small: tuple[str, ...], tmp_path: Path) -> None:
    """A later turn holds the plain answer to the one before, and so more tokens."""
    rows = tmp_path / "rows.jsonl"
    run_json(cli, *small, "--records", str(rows))
    made = [MeasuredPair.from_dict(json.loads(line)) for line in rows.read_text().splitlines()[1:]]
    lengths = {row.key.prompts[0]: row.stats.prompt_tokens for row in made if row.stats}
    assert lengths["1/2"] > lengths["1/1"] == lengths["0"]


def test_an_interruption_keeps_what_was_measured(
    cli: Cli, small: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = str(tmp_path / "rows.jsonl")
    whole = BenchSession.run

    def interrupted(self: BenchSession) -> Iterator[MeasuredPair]:
        for number, row in enumerate(whole(self)):
            if number == 3:
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr(BenchSession, "run", interrupted)
    result = cli.run(*small, "--records", rows)
    assert result.exit_code == 130
    assert "interrupted" in result.stderr
    assert "T = 0" in result.stdout
    monkeypatch.undo()
    before = Path(rows).read_text()
    content = run_json(cli, *small, "--records", rows)
    after = Path(rows).read_text()
    assert after.startswith(before)
    assert (len(before.splitlines()), len(after.splitlines())) == (4, 9)
    assert [cell["pairs"] for cell in content["cells"] if cell["category"] == "all"] == [4, 4]
    refused(cli.run(*small, "--records", rows, "--max-tokens", "5"), "was made with sampling")


def test_batches_and_trees(cli: Cli, small: tuple[str, ...]) -> None:
    content = run_json(
        cli, *small, "--batch-sizes", "1,2", "--tree", "chain,auto", "--num-tree-nodes", "4"
    )
    whole = [cell for cell in content["cells"] if cell["category"] == "all"]
    assert {(cell["batch_size"], "tree" in cell["setting"]) for cell in whole} == {
        (batch, tree) for batch in (1, 2) for tree in (False, True)
    }
    assert all(cell["identical"] == cell["comparable"] for cell in whole)


def test_bad_lines_are_counted(cli: Cli, small: tuple[str, ...], write: Write) -> None:
    bad = write("bad.jsonl", '{"turns": ["def add"]}\nnonsense\n')
    refused(cli.run(*small[:-1], bad), "bad.jsonl, line 2", "not JSON")
    result = cli.run(*small[:-1], bad, "--skip-bad")
    assert result.exit_code == 0, result.output
    assert "1 line is not a question and left out" in result.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--method", "sufix"), ["'sufix'", "'suffix'"]),
        (("--num-speculative-tokens", "0"), ["--num-speculative-tokens", "[1, 64]"]),
        (("--num-speculative-tokens", "some"), ["--num-speculative-tokens", "not an integer"]),
        (("--temperature", "-1"), ["--temperature"]),
        (("--policy", "fast"), ["'fast'", "adaptive"]),
        (("--tree", "absent.json"), ["absent.json"]),
        (("--workloads", "json"), ["--prompts", "--workloads"]),
        (("--html", "/absent/page.html"), ["--html", "/absent"]),
        (("--method-option", "x"), ["NAME=VALUE"]),
        (("--method-option", "prompt_lookup_max=3"), ["prompt_lookup_max"]),
        (("--max-context", "8"), ["no prompt leaves room"]),
        (("--prompt", "x"), ["--prompts"]),
    ],
)
def test_wrong_use(
    cli: Cli, small: tuple[str, ...], options: tuple[str, ...], words: list[str]
) -> None:
    refused(cli.run(*small, *options), *words)


def test_built_in_workloads_are_named(cli: Cli) -> None:
    refused(cli.run("bench", "--workloads", "jason"), "'jason'", "'json'")
