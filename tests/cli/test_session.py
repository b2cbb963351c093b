"""`--session`: a text is read once, and a conversation goes on where it ended."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from forerun.cli.terminal import PlainOutput
from forerun.engine.requests import TokenEvent
from forerun.engine.scheduler import Scheduler
from forerun.engine.sessions import read_session
from forerun.errors import ConfigError
from tests.helpers.command_line import Cli, Write
from tests.helpers.letter_chat import usual, with_template
from tests.helpers.refusals import refused

TEXT = "def add(a, b):\n    return a + b\n" * 9


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "a.session")


def stats_of(cli: Cli, *args: str, prompt: str = TEXT) -> dict[str, Any]:
    run = cli.generate
    if "--no-speculative" in args:
        run = partial(cli.run, "generate", "-m", cli.target, "-n", "24")
    result = run("--prompt", prompt, "--temperature", "0", "--json", *args)
    assert result.exit_code == 0, result.output
    content: dict[str, Any] = json.loads(result.stdout)
    return content


@pytest.mark.parametrize("options", [(), ("--no-speculative",), ("--backend", "torch")], ids=str)
def test_the_second_run_reads_what_the_first_has_read(
    cli: Cli, file: str, options: tuple[str, ...]
) -> None:
    plain = stats_of(cli, *options)
    first = stats_of(cli, "--session", file, *options)
    count = len(read_session(file).token_ids)
    assert count == first["prompt_tokens"] + len(first["token_ids"]) - 1
    again = stats_of(cli, "--session", file, *options)
    other = stats_of(cli, "--session", file, *options, prompt=TEXT + "def mul")
    assert plain["token_ids"] == first["token_ids"] == again["token_ids"]
    cached = [run["stats"]["num_cached_tokens"] for run in (first, again, other)]
    # The last token of a prompt is always run.
    assert cached == [0, first["prompt_tokens"] - 1, first["prompt_tokens"]]


def test_what_is_read_and_written_is_said_on_standard_error(cli: Cli, file: str) -> None:
    first = cli.generate("--prompt", TEXT, "--session", file)
    assert f"session written to {file}: " in first.stderr
    second = cli.generate("--prompt", "x", "--session", file)
    count = len(TEXT)
    assert " tokens read from session " in second.stderr
    assert len(second.stdout) < count


@pytest.mark.parametrize("error", [KeyboardInterrupt, ConfigError])
def test_what_was_read_is_kept_where_a_run_is_stopped(
    cli: Cli, file: str, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    wanted, show, shown = stats_of(cli)["token_ids"], PlainOutput.event, []

    def event(self: PlainOutput, event: TokenEvent) -> None:
        show(self, event)
        shown.append(event.token_id)
        if len(shown) == 5:
            raise error("planted")

    monkeypatch.setattr(PlainOutput, "event", event)
    result = cli.generate("--prompt", TEXT, "--temperature", "0", "--session", file)
    assert result.exit_code == (130 if error is KeyboardInterrupt else 2)
    monkeypatch.undo()
    again = stats_of(cli, "--session", file)
    assert again["token_ids"] == wanted
    assert again["stats"]["num_cached_tokens"] == again["prompt_tokens"] - 1


@pytest.mark.parametrize("place", ["admit", "ready"])
def test_where_nothing_was_read_there_is_no_session_to_keep(
    cli: Cli, file: str, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Scheduler, place, interrupted)
    result = cli.generate("--prompt", TEXT, "--session", file, "--policy", "fixed")
    assert result.exit_code == 130
    assert "no session was written: " in result.stderr
    assert not Path(file).exists()


def test_another_models_session_is_refused_and_stays(cli: Cli, file: str) -> None:
    stats_of(cli, "--session", file)
    before = Path(file).read_bytes()
    result = cli.run("generate", "-m", cli.draft, "--no-speculative", "-p", "x", "--session", file)
    refused(result, "saved with other weights", "logits differ by up to")
    result = cli.generate("-p", "x", "--session", file, "--dtype", "fp32", "--backend", "torch")
    assert result.exit_code == 2
    assert "cache_layout is tiles of the kernels, 2 there" in result.stderr
    assert Path(file).read_bytes() == before


def test_files_that_are_no_sessions_are_refused_before_the_model_is_loaded(
    cli: Cli, write: Write, file: str
) -> None:
    stats_of(cli, "--session", file)
    cut = write("cut", Path(file).read_bytes()[:-1])
    notes = write("notes.txt", "a shopping list")
    for path in (cut, notes):
        refused(cli.generate("-p", "x", "--session", path), f"session {path} is cut off")
    refused(cli.generate("-p", "x", "--session", "."), "a directory")
    refused(cli.generate("-p", "x", "--session", "/nowhere/a"), "there is no directory /nowhere")


def test_what_a_session_cannot_be_with_is_said(cli: Cli, file: str) -> None:
    refused(cli.generate("-p", "x", "--session", file, "--compare"), "--compare", "--session")
    options = ("--kv-method", "streaming_llm", "--kv-budget", "200", "--backend", "torch")
    result = cli.generate("-p", "x", "--session", file, *options)
    assert result.exit_code == 2
    assert "a cache that evicts cannot be saved as a session" in result.stderr
    assert not Path(file).exists()


def test_a_session_longer_than_the_prompt_needs_has_room(cli: Cli, file: str) -> None:
    stats_of(cli, "--session", file)
    assert stats_of(cli, "--session", file, prompt="def")["stats"]["num_cached_tokens"] == 0
    stats_of(cli, "--session", file)
    result = cli.generate("-p", "x", "--session", file, "--max-context", "32")
    assert result.exit_code == 2
    assert "tokens and the context is 32" in result.stderr


@pytest.fixture
def target(cli: Cli, tmp_path: Path) -> str:
    return with_template(cli.target, tmp_path)


def say(cli: Cli, target: str, *lines: str, options: tuple[str, ...] = ()) -> Any:
    content = "".join(f"{line}\n" for line in lines)
    return cli.run("chat", "-m", target, *usual(target), *options, input=content)


def test_a_conversation_goes_on_as_if_it_had_not_ended(
    cli: Cli, target: str, file: str, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole.json", tmp_path / "parts.json"
    say(cli, target, "def add", "return a", f"/save {whole}")
    first = say(cli, target, "def add", options=("--session", file))
    assert first.exit_code == 0, first.output
    second = say(cli, target, "return a", "/stats", f"/save {parts}", options=("--session", file))
    assert second.exit_code == 0, second.output
    assert json.loads(parts.read_text()) == json.loads(whole.read_text())
    held = len(read_session(file).token_ids)
    # Only the new message was run, and the answer's last token.
    new = int(second.stderr.split("prefill ran ")[1].split()[0])
    assert 0 < new < held / 2


def test_a_session_brings_its_system_message_unless_another_is_given(
    cli: Cli, target: str, file: str
) -> None:
    session = ("--session", file)
    say(cli, target, "def", options=(*session, "--system", "Be brief."))
    assert "system message: Be brief." in say(cli, target, "/system", options=session).stderr
    other = say(cli, target, "/system", options=(*session, "--system", "Be long."))
    assert "system message: Be long." in other.stderr


def test_a_chat_without_an_answer_leaves_the_session_as_it_was(
    cli: Cli, target: str, file: str
) -> None:
    say(cli, target, "/system", options=("--session", file))
    assert not Path(file).exists()
    say(cli, target, "def", options=("--session", file))
    before = Path(file).read_bytes()
    say(cli, target, "/system", options=("--session", file))
    assert Path(file).read_bytes() == before


def test_a_session_of_a_text_is_no_conversation(cli: Cli, target: str, file: str) -> None:
    cli.run("generate", "-m", target, "--raw", "-p", "def add", "-n", "3", "--session", file)
    refused(say(cli, target, "x", options=("--session", file)), "holds no conversation but a text")


def test_a_conversation_that_cannot_be_read_is_refused(
    cli: Cli, target: str, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        notes = property(lambda _: {"conversation": '{"messages": [3]}'})
        patch.setattr("forerun.cli.conversation.Conversation.notes", notes)
        say(cli, target, "def", options=("--session", file))
    result = say(cli, target, "x", options=("--session", file))
    assert result.exit_code == 2
    assert "message 1 is 3" in result.stderr
