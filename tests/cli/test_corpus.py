"""`--corpus`: texts to quote from, by flag, variable, file or JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from forerun.files import CACHE_VARIABLE
from tests.helpers.command_line import Cli, Write
from tests.helpers.refusals import refused

PROMPT = "ABCDEFGH"
# What is drawn by a seed repeats nothing, and the tokenizer has merged no capitals.
DRAWN = ("--temperature", "1", "--seed", "3", "--policy", "fixed", "--json")


@pytest.fixture(autouse=True)
def _kept_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))


def generate(cli: Cli, *args: str, **settings: Any) -> dict[str, Any]:
    capitals = AutoTokenizer.from_pretrained(cli.target).encode("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    allowed = ("--allowed-token-ids", ",".join(map(str, capitals)))
    words = ("generate", "--model", cli.target, "--max-tokens", "32", "--prompt", PROMPT)
    result = cli.run(*words, *allowed, *DRAWN, *args, **settings)
    assert result.exit_code == 0, result.output
    content: dict[str, Any] = json.loads(result.stdout)
    return content


@pytest.fixture
def answer(cli: Cli, write: Write) -> str:
    """A file with what the target answers, and nothing that it has said before it."""
    return write("answer.txt", PROMPT + str(generate(cli, "--method", "ngram")["text"]))


def accepted(content: dict[str, Any]) -> int:
    count: int = content["stats"]["num_accepted_tokens"]
    return count


def test_every_way_to_name_a_corpus_does_the_same(cli: Cli, answer: str, write: Write) -> None:
    method = "suffix"
    without = generate(cli, "--method", method)
    flag = generate(cli, "--method", method, "--corpus", answer)
    assert flag["token_ids"] == without["token_ids"]
    assert accepted(flag) > accepted(without) + 10
    other = write("other.txt", "nothing to quote")
    toml = write("corpus.toml", f'corpus = ["{other}", "{answer}"]')
    for args, env in (
        (("--corpus", other, "--corpus", answer), {}),
        (("--config", toml), {}),
        (("--config", write("one.toml", f'corpus = "{answer}"')), {}),
        (("--method-option", f"corpus={answer}"), {}),
        ((), {"FORERUN_CORPUS": os.pathsep.join((other, answer))}),
    ):
        found = generate(cli, "--method", method, *args, env=env)
        assert accepted(found) == accepted(flag), (args, env)
        assert found["token_ids"] == without["token_ids"]


def test_a_draft_model_is_asked_after_the_corpus(cli: Cli, answer: str) -> None:
    both = generate(cli, "--draft-model", cli.draft, "--corpus", answer)
    alone = generate(cli, "--draft-model", cli.draft)
    assert (alone["method"], both["method"]) == ("draft_model", "cascade")
    assert both["token_ids"] == alone["token_ids"]
    assert generate(cli, "--corpus", answer)["method"] == "suffix"


@pytest.mark.parametrize("method", ["draft_model", "token_recycling", "ngram"])
def test_methods_that_look_into_no_texts_refuse_them(cli: Cli, answer: str, method: str) -> None:
    result = cli.run(
        "generate", "--model", cli.target, "--prompt", "x", "--method", method, "--corpus", answer
    )
    refused(result, "corpus is not read by method", "method 'suffix'")


def test_a_method_from_a_flag_beats_a_corpus_from_a_file(
    cli: Cli, answer: str, write: Write
) -> None:
    toml = write("corpus.toml", f'corpus = "{answer}"')
    found = generate(cli, "--config", toml, "--method", "token_recycling")
    assert found["method"] == "token_recycling"


def test_what_a_folder_holds_beside_texts_is_said(cli: Cli, answer: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "config").write_bytes(b"\0")
    (folder / "binary").write_bytes(b"\0")
    (folder / "again").symlink_to(folder)
    (folder / "answer.txt").write_text(Path(answer).read_text())
    words = ("generate", "--model", cli.target, "--prompt", "x", "--max-tokens", "2")
    result = cli.run(*words, "--corpus", str(folder), "--policy", "fixed")
    assert result.exit_code == 0
    assert "suffix, quoting" in result.stderr
    (folder / "answer.txt").unlink()
    refused(cli.run(*words, "--corpus", str(folder)), "is empty (left out: 1 file that is not text")
    refused(cli.run(*words, "--corpus", str(folder / "missing")), "missing cannot be read")
    refused(cli.run(*words, "--corpus", ""), "is empty")
    refused(cli.run(*words, "--corpus", str(folder), "--no-speculative"), "--corpus")
