"""`forerun train data` on tiny models: what it writes, says and refuses."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from forerun.measure.ledger import Ledger
from forerun.training.conversations import RECORDS
from tests.helpers.command_line import Cli, Write
from tests.helpers.refusals import refused
from tests.helpers.terminal import in_terminal

SMALL = ("--max-tokens", "6", "--prompt-tokens", "12", "--max-context", "64", "--batch-size", "3")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def summary(cli: Cli, *args: str) -> dict[str, Any]:
    result = cli.run("train", "data", cli.target, *SMALL, *args, "--json")
    assert result.exit_code == 0, result.output
    content: dict[str, Any] = json.loads(result.stdout)
    return content


def test_a_file_and_its_summary(cli: Cli) -> None:
    content = summary(cli, "--num-conversations", "5", "--output", "made.jsonl")
    records = list(RECORDS.read("made.jsonl"))
    assert content["conversations"] == len(records) == 5
    assert content["answer_tokens"] == sum(len(record.answer_ids) for record in records)
    assert content["output"] == "made.jsonl"
    assert content["schema_version"] == 1
    header = RECORDS.read_header("made.jsonl")
    assert header.items() <= content["settings"].items()
    assert header["model"] == cli.target


def test_the_same_command_goes_on(cli: Cli) -> None:
    first = cli.run("train", "data", cli.target, *SMALL, "--num-conversations", "3")
    assert first.stdout.startswith("target-data.jsonl: 3 conversations, 3 answers of")
    second = cli.run("train", "data", "--model", cli.target, *SMALL, "--num-conversations", "7")
    assert "forerun: going on after 3 conversations in target-data.jsonl" in second.stderr
    assert "this run: 4 conversations" in second.stdout
    whole = Path("target-data.jsonl").read_bytes()
    summary(cli, "--num-conversations", "7", "--output", "whole.jsonl")
    assert Path("whole.jsonl").read_bytes() == whole


def test_questions_of_files_without_those_of_an_evaluation(cli: Cli, write: Write) -> None:
    asked = "\n".join(
        json.dumps({"question": text}) for text in ("def add", "def sub(", "return a + b")
    )
    first = write("first.jsonl.gz", gzip.compress(asked.encode()))
    second = write("second.txt", "def mul\n")
    unwanted = write("eval.jsonl", '{"turns": ["Return  A + B"], "category": "x"}')
    files = ("--questions", first, "--questions", second, "--keep-out", unwanted)
    content = summary(cli, *files, "--output", "made.jsonl")
    assert [record.prompt for record in RECORDS.read("made.jsonl")] == [
        "def add",
        "def sub(",
        "def mul",
    ]
    assert content["categories"] == {"first": 2, "second": 1}
    assert content["skipped"] == {"kept_out": 1}


def test_system_and_variables_go_into_the_template(cli: Cli, write: Write) -> None:
    chat = Path("chat")
    shutil.copytree(cli.target, chat)
    (chat / "chat_template.jinja").write_text(
        "{{ messages[0].content }}|{{ messages[1].content }}|{{ mood }}"
    )
    files = ("--questions", write("asked.txt", "def add"), "--output", "made.jsonl")
    template = ("--system", "code", "--template-var", "mood=kind")
    result = cli.run("train", "data", str(chat), *SMALL, *files, *template)
    assert result.exit_code == 0, result.output
    [record] = RECORDS.read("made.jsonl")
    from transformers import AutoTokenizer

    assert AutoTokenizer.from_pretrained(chat).decode(record.prompt_ids) == "code|def add|kind"


def test_a_bar_in_a_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.cli.bars.DELAY", 0.0)
    monkeypatch.setattr("forerun.cli.bars.PAUSE", 0.0)
    shown = in_terminal(
        monkeypatch, "train", "data", cli.target, *SMALL, "--num-conversations", "4", talk=True
    )
    assert "conversations" in shown
    assert "50%" in shown


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ("--questions", "absent.jsonl"),
            "question file absent.jsonl cannot be read: no such file",
        ),
        (("--questions", "empty.jsonl"), "question file empty.jsonl is empty; give at least one"),
        (("--keep-out", "bad.jsonl"), "bad.jsonl, line 1 holds no question; give one under any of"),
        (
            ("--output", "bad.jsonl"),
            "bad.jsonl is not a file of `forerun train data`; name another.",
        ),
        (("--output", "absent/made.jsonl"), "cannot be written: no such file or directory"),
        (("--max-tokens", "64"), "do not fit a context of 64; ask for fewer or for a longer"),
        (("--system", "Be kind."), "need a chat template, and the tokenizer has none"),
        (("--greedy-share", "2"), "greedy-share is 2.0; it must be a number in [0, 1]"),
        (("--model", "zoo"), "exclude each other"),
    ],
)
def test_wrong_use(cli: Cli, args: tuple[str, ...], said: str) -> None:
    Path("empty.jsonl").touch()
    Path("bad.jsonl").write_text('{"answer": 7}\n')
    assert said in refused(cli.run("train", "data", cli.target, *SMALL, *args))
    assert not Path("target-data.jsonl").exists() or not list(RECORDS.read("target-data.jsonl"))


def test_an_interruption_leaves_what_is_whole(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    summary(cli, "--num-conversations", "9", "--output", "whole.jsonl")
    append, appended = Ledger.append, 0

    def pressed(ledger: Ledger[Any], records: Sequence[Any]) -> None:
        nonlocal appended
        appended += 1
        if appended == 6:
            raise KeyboardInterrupt
        append(ledger, records)

    command = ("train", "data", cli.target, *SMALL, "--num-conversations", "9")
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "append", pressed)
        result = cli.run(*command)
    number = len(list(RECORDS.read("target-data.jsonl")))
    assert result.exit_code == 130
    assert number == 5
    assert (
        f"{number} conversations are in target-data.jsonl; the same command goes on"
        in result.stderr
    )
    assert cli.run(*command).exit_code == 0
    assert Path("target-data.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()


def test_the_group_names_its_commands(cli: Cli) -> None:
    result = cli.run("train")
    assert result.exit_code == 2
    assert "Have a model write and answer prompts" in result.stderr
    assert "Did you mean 'medusa'?" in refused(cli.run("train", "medua"))
