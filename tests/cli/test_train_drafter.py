"""`forerun train` on a tiny model: what it says in the end, what it measures again, and what drafts then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forerun.training.loop import Trainer
from tests.helpers.command_line import Cli
from tests.helpers.drafter_runs import save_data

SMALL = (
    "--tokens",
    "100",
    "--heads",
    "2",
    "--draft-vocab-size",
    "40",
    "--micro-batch-tokens",
    "64",
)

DRAFTING = ("--prompt", "def", "--max-tokens", "8", "--json", "--policy", "fixed")


def command(cli: Cli, tmp_path: Path, *args: str) -> list[str]:
    data = save_data(tmp_path / "data.jsonl")
    out = str(tmp_path / "head")
    return ["train", "medusa", cli.target, "--data", data, "--output", out, *SMALL, *args]


def test_the_end_of_a_training(cli: Cli, tmp_path: Path) -> None:
    result = cli.run(*command(cli, tmp_path))
    assert result.exit_code == 0, result.output
    assert "training on 20 conversations for 60 minutes at most, or 100 tokens" in result.stderr
    assert "3 steps are too few to judge a medusa head by" in result.stderr
    own = json.loads((tmp_path / "head" / "forerun.json").read_text())
    # The budget is spent: the same command says the same.
    again = cli.run(*command(cli, tmp_path, "--json"))
    assert again.exit_code == 0, again.output
    content = json.loads(again.stdout)
    assert content["curve"] == own["report"]["curve"]
    assert content["tokens"] == own["report"]["tokens"]


def test_a_draft_model(cli: Cli, tmp_path: Path) -> None:
    """It is trained, and drafts for its target; a vocabulary of its own is no option of it."""
    data, out = save_data(tmp_path / "data.jsonl"), str(tmp_path / "draft")
    args = ["train", "draft", cli.target, "--data", data, "--output", out, "--tokens", "100"]
    result = cli.run(*args, "--micro-batch-tokens", "64")
    assert result.exit_code == 0, result.output
    assert f"{out}: a draft model after " in result.stdout
    written = json.loads((tmp_path / "draft" / "forerun.json").read_text())["report"]
    trained, whole = (written[name] / 1e6 for name in ("trained_bytes", "weight_bytes"))
    assert f"{whole:.1f} MB, of which {trained:.1f} MB were trained" in result.stdout
    assert 0 < trained < whole
    prompt = ("generate", "--model", cli.target, *DRAFTING)
    texts = [
        json.loads(cli.run(*prompt, "--temperature", "0", *more).stdout)["text"]
        for more in (("--draft-model", out), ("--method", "ngram"))
    ]
    assert texts[0] == texts[1]
    assert cli.run(*args, "--draft-vocab-size", "40").exit_code == 2


def test_from_nothing(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without data the model writes some first; what was interrupted goes on, and is read when whole."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"NUM_CONVERSATIONS": 6, "MAX_TOKENS": 12, "PROMPT_TOKENS": 8}.items():
        monkeypatch.setenv(f"FORERUN_{name}", str(value))
    file = Path(f"{Path(cli.target).name}-data.jsonl")
    args = ("train", "medusa", cli.target, *SMALL)
    result = cli.run(*args)
    assert result.exit_code == 0, result.output
    assert f"writes {file} first: 6 conversations to be trained on" in result.stderr
    written = file.read_text()
    assert len(written.splitlines()) == 7
    assert not Path(f"{file}.part").exists()
    file.rename(f"{file}.part")
    again = cli.run(*args)
    assert again.exit_code == 0, again.output
    assert file.read_text() == written
    content = written.splitlines(keepends=True)
    file.write_text(
        "".join([json.dumps({**json.loads(content[0]), "model": "other"}) + "\n", *content[1:]])
    )
    refusal = cli.run(*args)
    assert refusal.exit_code == 2
    assert "holds answers of 'other'" in refusal.stderr


def test_an_interrupted_training_says_how_it_goes_on(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> int:
        raise KeyboardInterrupt

    args = command(cli, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_step", stop)
        stopped = cli.run(*args)
    assert stopped.exit_code == 130
    assert (
        f"{tmp_path / 'head' / 'training'} keeps the training; the same command" in stopped.stderr
    )
    assert cli.run(*args).exit_code == 0


def test_a_started_file_is_named(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("made.jsonl.part").touch()
    limits = ("--num-conversations", "1", "--max-tokens", "4", "--prompt-tokens", "4")
    result = cli.run("train", "data", cli.target, "--output", "made.jsonl", *limits)
    assert "made.jsonl.part is what an interrupted 'forerun train' has written" in result.stderr


def test_from_nothing_with_a_config_of_the_training(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys are no options of the data; the questions to keep out are."""
    monkeypatch.chdir(tmp_path)
    Path("train.toml").write_text("minutes = 0.01\n")
    Path("asked.txt").write_text("What is asked?\n")
    for name, value in {"NUM_CONVERSATIONS": 6, "MAX_TOKENS": 12, "PROMPT_TOKENS": 8}.items():
        monkeypatch.setenv(f"FORERUN_{name}", str(value))
    monkeypatch.setenv("FORERUN_CONFIG", "train.toml")
    monkeypatch.setenv("FORERUN_KEEP_OUT", "asked.txt")
    result = cli.run("train", "medusa", cli.target, *SMALL)
    assert result.exit_code == 0, result.output
    header = json.loads(next(Path(".").glob("*-data.jsonl")).read_text().splitlines()[0])
    assert header["keep_out"] is not None
