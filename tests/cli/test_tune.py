"""`forerun tune` on tiny models: what it finds, says, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forerun.bench.session import BenchSession
from tests.helpers.command_line import Cli, Write
from tests.helpers.refusals import refused

SMALL = (
    *("--max-tokens", "12", "--max-context", "128", "--num-prompts", "4", "--finalists", "2"),
    *("--method", "ngram,draft_model", "--num-speculative-tokens", "1-3"),
)
QUESTIONS = "\n".join(
    json.dumps({"category": category, "prompt": f"def {name}(a, b):"})
    for category in ("sums", "loops")
    for name in ("add", "walk", "find")
)


@pytest.fixture
def prompts(write: Write) -> str:
    return write("questions.jsonl", QUESTIONS)


def tuned(cli: Cli, prompts: str, *args: str) -> dict[str, Any]:
    pair = ("--model", cli.target, "--draft-model", cli.draft)
    result = cli.run("tune", *pair, "--prompts", prompts, *SMALL, *args, "--json")
    assert result.exit_code == 0, result.output
    content: dict[str, Any] = json.loads(result.stdout)
    return content


def test_the_faster_half_runs_on_all_prompts(cli: Cli, prompts: str) -> None:
    content = tuned(cli, prompts)
    whole = [cell for cell in content["cells"] if cell["category"] == "all"]
    assert len(whole) == 3
    assert all(cell["pairs"] == cell["identical"] == 4 for cell in whole)
    [left_out] = [
        text for text in content["remarks"] if text.startswith("left out after 2 prompts")
    ]
    assert left_out.count(" x)") == 3
    # Four prompts are too few for a verdict, as they are for `forerun bench`.
    assert content["verdicts"][0]["advice"].startswith("too few prompts to tell")


def test_forerun_by_itself_runs_beside_methods_that_were_not_named(cli: Cli, prompts: str) -> None:
    few = ("--max-tokens", "6", "--num-prompts", "3", "--num-speculative-tokens", "2")
    result = cli.run(
        "tune", "--model", cli.target, "--prompts", prompts, *few, "--finalists", "1", "--json"
    )
    assert result.exit_code == 0, result.output
    cells = json.loads(result.stdout)["cells"]
    whole = [cell["setting"] for cell in cells if cell["category"] == "all"]
    assert "default" in whole
    assert len(whole) == 2


def test_the_config_that_is_written_is_one_that_commands_take(
    cli: Cli, prompts: str, tmp_path: Path
) -> None:
    """It samples as it was measured, which is not how generate does by itself."""
    file = str(tmp_path / "tuned.toml")
    [chosen] = tuned(cli, prompts, "--output", file, "--num-prompts", "6")["config"]
    done = cli.run("generate", "--config", file, "--max-tokens", "4", "--prompt", "def", "--json")
    assert done.exit_code == 0, done.output
    completed = json.loads(done.stdout)
    assert completed["method"] == chosen.get("method")
    assert chosen["model"] == cli.target
    assert completed["sampling"]["temperature"] == chosen["temperature"] == 0.0


def test_bench_measures_what_the_file_says(cli: Cli, prompts: str, write: Write) -> None:
    file = write(
        "tuned.toml",
        f"""model = "{cli.target}"
temperature = 0.0
method = "draft_model"
draft-model = "{cli.draft}"
num-speculative-tokens = 2
tree = "auto"
num-tree-nodes = 4
method-option = ["draft_dtype=fp32"]
""",
    )
    few = ("--max-tokens", "6", "--limit", "1", "--minutes", "0", "--prompts", prompts, "--json")
    result = cli.run("bench", "--config", file, *few)
    assert result.exit_code == 0, result.output
    cells = json.loads(result.stdout)["cells"]
    assert {cell["setting"] for cell in cells} == {"draft_model draft, 2 tokens, tree of 4"}
    assert {cell["temperature"] for cell in cells} == {0.0}
    plain = write("plain.toml", f'model = "{cli.target}"\nspeculative = false\n')
    refused(cli.run("bench", "--config", plain), "speculation is off", "leave that out")


def test_an_interrupted_run_goes_on_and_measures_nothing_twice(
    cli: Cli, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.jsonl"
    usual = BenchSession.run

    def interrupted(self: BenchSession) -> Any:
        for number, row in enumerate(usual(self)):
            if number == 3:
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr(BenchSession, "run", interrupted)
    pair = ("--model", cli.target, "--draft-model", cli.draft)
    run = ("tune", *pair, "--prompts", prompts, *SMALL, "--records", str(file))
    stopped = cli.run(*run)
    assert stopped.exit_code == 130
    assert "interrupted: these are the pairs" in stopped.stderr
    assert len(file.read_text().splitlines()) == 1 + 3
    monkeypatch.setattr(BenchSession, "run", usual)
    first = tuned(cli, prompts, "--records", str(file))
    # Six settings on two prompts, the faster three on two more.
    assert len(file.read_text().splitlines()) == 1 + 6 * 2 + 3 * 2
    again = tuned(cli, prompts, "--records", str(file))
    assert len(file.read_text().splitlines()) == 1 + 6 * 2 + 3 * 2
    assert {cell["setting"] for cell in again["cells"]} == {c["setting"] for c in first["cells"]}


def test_the_precision_of_the_cache_is_part_of_the_model(
    cli: Cli, prompts: str, tmp_path: Path
) -> None:
    """Methods run with it, and the file for other commands has it."""
    file, records = str(tmp_path / "tuned.toml"), str(tmp_path / "rows.jsonl")
    small = ("--num-prompts", "1", "--max-tokens", "6", "--num-speculative-tokens", "2", "--json")
    run = ("tune", "--model", "zoo", "--prompts", prompts, *small, "--method", "self_sparse")
    result = cli.run(*run, "--kv-dtype", "int8", "--output", file, "--records", records)
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content["settings"]["kv_dtype"] == content["config"][0]["kv-dtype"] == "int8"
    done = cli.run("generate", "--config", file, "--max-tokens", "2", "--prompt", "def", "--json")
    assert json.loads(done.stdout)["kv_dtype"] == "int8"
    refused(cli.run(*run, "--kv-dtype", "bf16", "--records", records), "was made with engine")


def test_what_cannot_be_tuned_is_refused(cli: Cli, write: Write, prompts: str) -> None:
    model = ("tune", "--model", cli.target, "--prompts")
    refused(cli.run(*model, write("empty.txt", "\n")), "is empty")
    refused(cli.run(*model, write("broken.jsonl", '{"prompt": "a"}\n{')), "line 2")
    room = ("--max-tokens", "120", "--max-context", "121", "--method", "ngram")
    refused(cli.run(*model, prompts, *room), "no prompt leaves room")
    refused(cli.run(*model, prompts, "--method", "nagram"), "nagram")
    refused(cli.run(*model, prompts, "--batch-sizes", "1,4", "--output", "a"), "one setting")
    other = write("other.jsonl", '{"format": "something", "version": 1, "made_with": {}}\n')
    few = ("--method", "ngram", "--num-prompts", "1", "--max-tokens", "4", "--records", other)
    refused(cli.run(*model, prompts, *few), "not a file of `forerun bench`")
    refused(cli.run(*model, prompts, "--method", "draft_model"), "no draft model is known")
