"""`forerun tune` on tiny models: what it finds, says, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forerun.bench.tune.records import Records
from forerun.bench.tune.workbench import Workbench
from tests.cli.conftest import CONTEXT
from tests.helpers.command_line import Cli, Write
from tests.helpers.refusals import refused

SMALL = (
    *("--max-tokens", "12", "--seconds", "0.01", "--max-context", "128", "--num-prompts", "4"),
    *("--methods", "ngram,draft_model", "--longest", "3"),
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


def test_every_setting_is_predicted_and_the_best_are_run(cli: Cli, prompts: str) -> None:
    content = tuned(cli, prompts, "--confirm", "2")
    rows = {(row["candidate"], row["num_tokens"]): row for row in content["rows"]}
    candidates = {"ngram", f"draft_model ({cli.draft})"}
    assert rows.keys() == {(name, n) for name in candidates for n in (1, 2, 3)}
    assert all(row["by_category"].keys() == {"sums", "loops"} for row in rows.values())
    run = [row for row in content["rows"] if row["confirmed"] is not None]
    assert len(run) == 2
    for row in run:
        assert row["error"] == pytest.approx(row["speedup"] / row["confirmed"] - 1.0)
    assert content["verdict"]


def test_forerun_by_itself_runs_beside_candidates_that_were_not_named(
    cli: Cli, prompts: str, tmp_path: Path
) -> None:
    file = str(tmp_path / "rounds.jsonl")
    short = (*SMALL[:-4], "--longest", "2", "--confirm", "1", "--records", file)
    result = cli.run("tune", "--model", cli.target, "--prompts", prompts, *short)
    assert result.exit_code == 0, result.output
    run = {key.setting for key in Records.read(file).pairs}
    assert "default" in run
    assert len(run) == 2


def test_batches_trees_and_precisions_are_settings_too(cli: Cli, prompts: str) -> None:
    content = tuned(
        *(cli, prompts, "--batch-sizes", "1,2", "--trees", "4", "--draft-dtypes", "fp32,bf16"),
        *("--confirm", "1", "--temperature", "1", "--seed", "3"),
    )
    settings = {(row["candidate"], row["num_tokens"], row["batch_size"]) for row in content["rows"]}
    chains = [("ngram", n) for n in (1, 2, 3)] + [("ngram (tree of 4)", 3)]
    for dtype in ("fp32", "bf16"):
        own = f"{cli.draft}, draft_dtype={dtype}"
        chains += [(f"draft_model ({own})", n) for n in (1, 2, 3)]
        chains.append((f"draft_model ({own}, tree of 4)", 3))
    assert settings == {(*chain, batch) for chain in chains for batch in (1, 2)}
    assert content["config"].keys() == {"1", "2"}


def test_the_config_that_is_written_is_one_that_commands_take(
    cli: Cli, prompts: str, tmp_path: Path
) -> None:
    """It samples as it was measured, which is not how generate does by itself."""
    file = str(tmp_path / "tuned.toml")
    content = tuned(cli, prompts, "--output", file, "--num-prompts", "6")
    done = cli.run("generate", "--config", file, "--max-tokens", "4", "--prompt", "def", "--json")
    assert done.exit_code == 0, done.output
    chosen, completed = content["config"]["1"], json.loads(done.stdout)
    assert completed["method"] == chosen.get("method")
    assert chosen["model"] == cli.target
    assert completed["sampling"]["temperature"] == chosen["temperature"] == 0.0


def test_an_interrupted_run_goes_on_and_measures_nothing_twice(
    cli: Cli, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(tmp_path / "rounds.jsonl")
    usual, calls = Workbench.record, []

    def record(self: Workbench, *args: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return usual(self, *args)

    monkeypatch.setattr(Workbench, "record", record)
    pair = ("--model", cli.target, "--draft-model", cli.draft)
    stopped = cli.run("tune", *pair, "--prompts", prompts, *SMALL, "--records", file)
    assert stopped.exit_code == 130
    assert file in stopped.stderr
    assert len(Records.read(file).outputs) == 2
    resumed = tuned(cli, prompts, "--records", file)
    assert len(calls) == 3 + 2 * 4 - 2
    whole = tuned(cli, prompts, "--records", str(tmp_path / "other.jsonl"))
    # Times differ, what was drafted and accepted does not.
    measured = ("candidate", "num_tokens", "tokens_per_forward", "acceptance_rate")
    assert sorted([row[name] for name in measured] for row in resumed["rows"]) == sorted(
        [row[name] for name in measured] for row in whole["rows"]
    )
    before = len(calls)
    again = tuned(cli, prompts, "--records", file)
    assert len(calls) == before
    assert again["rows"] == resumed["rows"]


def test_the_table_and_the_verdict_for_people(cli: Cli, prompts: str) -> None:
    pair = ("--model", cli.target, "--draft-model", cli.draft)
    result = cli.run("tune", *pair, "--prompts", prompts, *SMALL)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "Speed-up over plain decoding" in lines[0]
    # Four prompts are too few for a verdict, as they are for `forerun bench`.
    assert any(line.startswith("too few prompts to tell") for line in lines)


def test_from_which_context_on_a_part_of_the_cache_pays(cli: Cli, prompts: str) -> None:
    """Said for the method whose drafts depend on it, in words and as an object."""
    args = ("--methods", "ngram,self_sparse", "--longest", "2", "--confirm", "0")
    content = tuned(cli, prompts, *args)
    [found] = content["break_even_contexts"]
    assert found["candidate"] == "self_sparse"
    assert found["model_context"] == CONTEXT
    # These prompts are shorter than the window.
    assert found["untested"]
    assert [line.startswith("self_sparse") for line in content["contexts"]] == [True, False, False]
    own = {row["num_tokens"]: row["break_even"] for row in content["rows"] if row["break_even"]}
    assert own[found["num_tokens"]].items() <= found.items()
    people = cli.run("tune", "--model", cli.target, "--prompts", prompts, *SMALL, *args)
    assert "Contexts are predicted from what drafts read" in people.stdout


def test_the_precision_of_the_cache_is_part_of_the_model(
    cli: Cli, prompts: str, tmp_path: Path
) -> None:
    """Methods run with it, and the file for other commands has it."""
    file, records = str(tmp_path / "tuned.toml"), str(tmp_path / "rounds.jsonl")
    small = ("--num-prompts", "1", "--confirm", "0", *SMALL[:6], "--longest", "2", "--json")
    run = ("tune", "--model", "zoo", "--prompts", prompts, *small, "--methods", "self_sparse")
    result = cli.run(*run, "--kv-dtype", "int8", "--output", file, "--records", records)
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content["settings"]["kv_dtype"] == content["config"]["1"]["kv-dtype"] == "int8"
    [found] = content["break_even_contexts"]
    assert found["candidate"] == "self_sparse"
    done = cli.run("generate", "--config", file, "--max-tokens", "2", "--prompt", "def", "--json")
    assert json.loads(done.stdout)["kv_dtype"] == "int8"
    assert "was made with kv_dtype 'int8', not 'bf16'" in refused(
        cli.run(*run, "--kv-dtype", "bf16", "--records", records)
    )


def test_what_cannot_be_tuned_is_refused(cli: Cli, write: Write, prompts: str) -> None:
    model = ("tune", "--model", cli.target, "--prompts")
    empty = write("empty.txt", "\n")
    assert "is empty" in refused(cli.run(*model, empty))
    broken = write("broken.jsonl", '{"prompt": "a"}\n{')
    assert "line 2" in refused(cli.run(*model, broken))
    assert "no prompt leaves room" in refused(
        cli.run(
            *model, prompts, "--max-tokens", "120", "--max-context", "121", "--methods", "ngram"
        )
    )
    assert "nagram" in refused(cli.run(*model, prompts, "--methods", "nagram"))
    other = write("other.jsonl", '{"format": "something", "version": 1, "made_with": {}}\n')
    assert "not a file of `forerun tune`" in refused(cli.run(*model, prompts, "--records", other))
    missing = refused(cli.run(*model, prompts, "--methods", "draft_model", "--max-tokens", "8"))
    assert "no draft model is known" in missing
