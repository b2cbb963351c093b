"""`forerun chat`: turns, commands, interruptions, and what its prefill runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from forerun.measure.paired import Run
from forerun.policies.fixed import FixedPolicy
from tests.helpers.command_line import Cli, Write
from tests.helpers.letter_chat import END, usual, with_template
from tests.helpers.real_model import needs_smollm2
from tests.helpers.refusals import refused
from tests.helpers.session import CTRL_C, CTRL_D, Session

ACCEPTED = "\x1b[4;32m"
_PREFILL = re.compile(r"prefill ran (\d+) of (\d+) prompt tokens")


@pytest.fixture
def target(cli: Cli, tmp_path: Path) -> str:
    """The target with a chat template."""
    return with_template(cli.target, tmp_path)


def say(cli: Cli, target: str, *lines: str | bytes, options: tuple[str, ...] = ()) -> Any:
    """A scripted conversation, through a pipe."""
    content = b"".join(line if isinstance(line, bytes) else line.encode() + b"\n" for line in lines)
    return cli.run("chat", "-m", target, "-md", cli.draft, *usual(target), *options, input=content)


def saved(file: Path) -> list[dict[str, str]]:
    content: list[dict[str, str]] = json.loads(file.read_text(encoding="utf-8"))
    return content


@contextmanager
def session(cli: Cli, target: str, *options: str, **settings: str) -> Iterator[Session]:
    opened = Session("chat", "-m", target, "-md", cli.draft, *usual(target), *options, **settings)
    try:
        opened.expect("> ")
        yield opened
    finally:
        opened.process.kill()
        opened.process.join()


def counts(text: str) -> list[tuple[int, int]]:
    """New and all prompt tokens of each /stats."""
    return [(int(new), int(total)) for new, total in _PREFILL.findall(text)]


def test_a_system_message_in_parts_is_shown_as_text(cli: Cli, target: str, write: Write) -> None:
    parts = [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]
    file = write("m.json", json.dumps([{"role": "system", "content": parts}]))
    result = say(cli, target, "/system", options=("--messages", file))
    assert "system message: Be\nbrief." in result.stderr


def test_the_transcript_of_three_turns(cli: Cli, target: str, tmp_path: Path) -> None:
    """In a terminal; what the prefill of a later turn runs is its new message and what opens the answer,
    and the answer's last token, which was emitted and not yet run."""
    file = tmp_path / "saved.json"
    shown = ""
    questions = ("def add", "return a", "def add again")
    with session(cli, target) as talk:
        for question in questions:
            talk.send(f"{question}\n")
            shown += talk.expect("> ")
            talk.send("/stats\n")
            shown += talk.expect("> ")
        talk.send(f"/save {file}\n")
        talk.expect("6 messages written")
        talk.send("/bye\n")
        assert talk.end()[0] == 0
        assert ACCEPTED in talk.raw  # accepted tokens, in colour
        assert "forerun: chat with" in talk.raw
    messages = saved(file)
    assert [message["role"] for message in messages] == ["user", "assistant"] * 3
    assert tuple(message["content"] for message in messages[::2]) == questions
    for answer in messages[1::2]:
        assert "".join(c for c in answer["content"] if c.isalnum()) in shown
    turns = counts(shown)
    assert turns[0][0] == turns[0][1]
    tokenizer = AutoTokenizer.from_pretrained(target)
    for number, (new, total) in enumerate(turns[1:], start=1):
        asked = f"{END}user:{questions[number]}{END}assistant:"
        assert total > turns[number - 1][1]
        assert new == len(tokenizer.encode(asked)) + 1


@pytest.mark.parametrize(
    "options", [("--temperature", "0"), ("--no-speculative",), ("--seed", "3")], ids=str
)
def test_later_turns_run_only_new_tokens(cli: Cli, target: str, options: tuple[str, ...]) -> None:
    """Also where the answer's text would be encoded as other tokens than were drawn."""
    draft = () if "--no-speculative" in options else ("-md", cli.draft)
    lines = "def add\n/stats\nret\n/stats\n"
    result = cli.run("chat", "-m", target, *draft, "--max-tokens", "6", *options, input=lines)
    first, second = counts(result.stderr)
    assert first[0] == first[1]
    tokenizer = AutoTokenizer.from_pretrained(target)
    assert second[0] <= len(tokenizer.encode(f"{END}user:ret{END}assistant:")) + 1


def test_answers_are_those_of_generate(cli: Cli, target: str, write: Write) -> None:
    result = say(cli, target, "def add", "", "go on", options=("--system", "s"))
    assert result.exit_code == 0
    first = cli.run("generate", "-m", target, *usual(target), "--system", "s", "def add", "--json")
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "def add"},
        {"role": "assistant", "content": json.loads(first.stdout)["text"]},
    ]
    file = write("m.json", json.dumps([*messages, {"role": "user", "content": "go on"}]))
    second = cli.run("generate", "-m", target, *usual(target), "--messages", file, "--json")
    answers = [json.loads(output.stdout)["text"] for output in (first, second)]
    assert result.stdout == "".join(f"{answer}\n" for answer in answers)
    # A conversation that ends with a question begins with its answer.
    assert say(cli, target, options=("--messages", file)).stdout == f"{answers[1]}\n"
    saved_first = write("n.json", json.dumps(messages))
    assert (
        say(cli, target, "go on", options=("--messages", saved_first)).stdout == f"{answers[1]}\n"
    )


def test_a_drafter_that_was_given_up_is_named_once(
    cli: Cli, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As talk, below the answer after which it happened, however its numbers change later."""
    rounds = iter(range(99))

    def given_up(_: FixedPolicy) -> list[str]:
        now = next(rounds)
        one = [f"one was given up after {now} rounds (0.{now} of a plain round)"] if now else []
        return [*one, *(["two3 was given up in an earlier run"] if now > 1 else [])]

    monkeypatch.setattr(FixedPolicy, "given_up", given_up)
    result = say(cli, target, "def add", "go on", "again", "/help", "more")
    assert result.exit_code == 0
    assert result.stderr.count("was given up") == 2
    assert "forerun: one was given up after 1 rounds (0.1 of a plain round)\n" in result.stderr
    assert "forerun: two3 was given up in an earlier run\n" in result.stderr
    assert "given up" not in result.stdout


def test_commands(cli: Cli, target: str, tmp_path: Path) -> None:
    file = tmp_path / "saved.json"
    result = say(cli, target, "/help", "/system be kind", "one", "/clear", "two", f"/save {file}")
    assert result.exit_code == 0
    assert "/save FILE" in result.stderr
    assert "system message: be kind" in result.stderr
    kept = saved(file)
    assert [message["role"] for message in kept] == ["system", "user", "assistant"]
    assert [message["content"] for message in kept[:2]] == ["be kind", "two"]
    say(
        cli,
        target,
        "one",
        "/clear",
        "/system a",
        "/system b",
        "//etc",
        f"/save {file}",
        "/bye",
        "x",
    )
    kept = saved(file)
    assert [message["content"] for message in kept[:2]] == ["b", "/etc"]
    assert len(kept) == 3


@pytest.mark.parametrize("word", ["/bye", "/exit", "/quit", "exit", " exit "])
def test_words_that_end_it(cli: Cli, target: str, word: str) -> None:
    result = say(cli, target, word, "def add")
    assert (result.exit_code, result.stdout) == (0, "")


def test_quotes_hold_a_message_of_several_lines(cli: Cli, target: str, tmp_path: Path) -> None:
    file = tmp_path / "saved.json"
    say(cli, target, '"""def', "", ' exit"""', '"""one"""', f"/save {file}", '"""open')
    assert [message["content"] for message in saved(file)[::2]] == ["def\n\n exit", "one"]


def test_text_in_quotes_is_never_a_command(cli: Cli, target: str, tmp_path: Path) -> None:
    file, texts = tmp_path / "saved.json", ["/usr/bin/env is what?", "// comment", "/bye"]
    quoted = [f'"""{text}"""' for text in texts]
    result = say(cli, target, *quoted, '"""', "/clear", '"""', f"/save {file}")
    assert result.exit_code == 0
    assert [message["content"] for message in saved(file)[::2]] == [*texts, "/clear"]


def test_a_pasted_text_is_one_message(cli: Cli, target: str, tmp_path: Path) -> None:
    file = tmp_path / "saved.json"
    with session(cli, target) as talk:
        talk.send("\x1b[200~def add\n  return\x1b[201~\n")
        talk.expect("> ")
        talk.send("\x1b[200~/clear\n//x\x1b[201~\n")
        talk.expect("> ")
        for line in ('"""one', "", 'two"""'):
            talk.send(f"{line}\n")
            talk.expect("> ")
        talk.send(f"/save {file}\n")
        talk.expect("6 messages written")
        assert "\x1b[?2004h" in talk.raw, "the terminal was not told to mark what is pasted"
    assert [message["content"] for message in saved(file)[::2]] == [
        "def add\n  return",
        "/clear\n//x",
        "one\n\ntwo",
    ]


def test_a_parameter_is_set(cli: Cli, target: str) -> None:
    lines = ("/set max-tokens 3", "/set parameter ignore_eos true", "def add", "/stats")
    result = say(cli, target, *lines)
    assert result.exit_code == 0
    assert "max_tokens is 3" in result.stderr
    assert re.search(r"tokens +3 after", result.stderr)


def test_a_parameter_is_set_to_none_where_that_is_allowed(cli: Cli, target: str) -> None:
    lines = ("/set max_tokens none", "/set seed None", "def add", "/stats")
    result = say(cli, target, *lines, options=("--ignore-eos", "--max-context", "128"))
    assert result.exit_code == 0
    # The answer goes on to the end of the context.
    emitted, prompt = map(int, re.findall(r"tokens +(\d+) after (\d+)", result.stderr)[0])
    assert emitted + prompt == 128


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (("/set",), ["unknown parameter"]),
        (("/set logprobs 3",), ["unknown parameter"]),
        (("/set logprobs_mode raw",), ["unknown parameter"]),
        (("/set temperature none",), ["temperature", "not a valid number"]),
        (("/set temprature 0",), ["'temperature'"]),
        (("/set temperature hot",), ["temperature", "hot"]),
        (("/set temperature -1",), ["temperature", "[0, 100]"]),
        (("/sav x",), ["'/save'", "/bye"]),
        (("/etc/passwd",), ["unknown command"]),
        (("/stats",), ["no answer"]),
        (("/save",), ["name of a file"]),
        (("/save /",), ["directory"]),
        (("/save /no/such/dir/x",), ["no directory"]),
    ],
    ids=str,
)
def test_what_is_refused_ends_nothing(
    cli: Cli, target: str, lines: tuple[str, ...], words: list[str]
) -> None:
    result = say(cli, target, *lines, options=("--show-prompt",))
    errors = [line for line in result.stderr.splitlines() if "error" in line]
    assert len(errors) == 1
    assert all(word in errors[0] for word in words)
    assert not errors[0].endswith("..")
    assert result.exit_code == 2
    again = say(cli, target, *lines, "def add")
    assert again.stdout == say(cli, target, "def add").stdout


@pytest.mark.parametrize("content", [b"\xff\xfe\nx\n\xff\n", b"def \x00\xff"])
def test_bytes_that_are_no_text_end_it(cli: Cli, target: str, content: bytes) -> None:
    result = say(cli, target, content)
    assert (result.exit_code, result.stdout) == (2, "")
    assert sum("not UTF-8" in line for line in result.stderr.splitlines()) == 1


def test_a_line_without_an_end(cli: Cli, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.cli.repl.MOST_BYTES", 10)
    result = say(cli, target, "x" * 11)
    assert result.exit_code == 2
    assert "longer than 10 B" in result.stderr


def test_a_conversation_beyond_the_context_goes_on_without_its_oldest_turn(
    cli: Cli, target: str, tmp_path: Path
) -> None:
    file = tmp_path / "saved.json"
    result = say(
        *(cli, target, "def add", "def " * 20, "x" * 500, f"/save {file}"),
        options=("--max-context", "80"),
    )
    assert result.exit_code == 2
    first, second = [line for line in result.stderr.splitlines() if "over the context" in line]
    assert re.search(r"is \d+ tokens? over the context of 80; its oldest turn is dropped", first)
    assert "over the context of 80, as is this message alone" in second
    assert [message["content"] for message in saved(file)[::2]] == [("def " * 20).strip()]


def test_ctrl_c_ends_an_answer_and_not_the_program(cli: Cli, target: str, tmp_path: Path) -> None:
    file = tmp_path / "saved.json"
    long = ("--max-tokens", "15000", "--ignore-eos", "--max-context", "16384")
    first = say(cli, target, "def add").stdout[0]
    with session(cli, target, *long) as talk:
        talk.send("def add\n")
        talk.expect("def add\n")
        talk.expect(first)
        talk.press(CTRL_C)
        talk.expect("> ")
        talk.send(f"/save {file}\n")
        talk.expect("2 messages written")
        talk.expect("> ")
        talk.press(CTRL_C)
        talk.expect("Ctrl-C again")
        talk.expect("> ")
        talk.press(CTRL_C)
        assert talk.end()[0] == 130
    answer = saved(file)[1]["content"]
    assert answer[0] == first
    assert 1 <= len(answer) < 15000


def test_an_answer_without_tokens_does_not_lose_the_session(
    cli: Cli, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, follow, runs = tmp_path / "s.session", Run.follow, []

    def interrupted(run: Run, see: Any) -> Run:
        runs.append(run)
        if len(runs) == 2:
            raise KeyboardInterrupt
        return follow(run, see)

    monkeypatch.setattr(Run, "follow", interrupted)
    options = ("--session", str(file))
    assert say(cli, target, "def add", "return a", options=options).exit_code == 130
    again = say(cli, target, f"/save {tmp_path / 'm.json'}", options=options)
    assert again.exit_code == 0
    assert saved(tmp_path / "m.json")[0]["content"] == "def add"


def test_a_shown_prompt_does_not_drive_the_terminal(cli: Cli, target: str, write: Write) -> None:
    said = [{"role": "system", "content": "a\x1b]0;owned\x07b"}]
    file = write("m.json", json.dumps(said))
    with session(cli, target, "--messages", file, "--show-prompt") as talk:
        talk.send("def add\n")
        talk.expect("owned")
        talk.expect("> ")
        assert "\x1b]0" not in talk.raw


def test_no_colour_in_a_terminal_without(cli: Cli, target: str) -> None:
    with session(cli, target, NO_COLOR="1") as talk:
        talk.send("def add\n")
        talk.expect("> ")
        assert ACCEPTED not in talk.raw


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--messages", "-"), ["--messages", "file"]),
        (("--messages", "/no/such"), ["/no/such"]),
        (("--method", "prediction"), ["'prediction'", "conversation"]),
        (("--template-var", "nobody=1"), ["nobody"]),
        (("--template-var", "a=1", "--template-var", "a=1"), ["a twice"]),
        (("--max-context", "1"), ["context"]),
        (("--json",), ["--json"]),
        (("--no-speculative",), ["--draft-model", "--no-speculative", "exclude"]),
    ],
    ids=str,
)
def test_wrong_options(cli: Cli, target: str, options: tuple[str, ...], words: list[str]) -> None:
    draft = () if "prediction" in options else ("-md", cli.draft)
    refused(cli.run("chat", "-m", target, *draft, *options, input="hi\n"), *words)


def test_the_help_holds_what_a_conversation_takes(cli: Cli) -> None:
    text = " ".join(cli.run("chat", "--help-all").stdout.split())
    assert "Method prediction" not in text
    assert "Method suffix" in text
    assert "left out, the model's context up to 4096" in text


def test_a_base_model_has_no_conversation(cli: Cli) -> None:
    refused(
        cli.run("chat", "-m", cli.target, input="hi\n"), cli.target, "chat template", "generate"
    )


def test_a_template_that_refuses_a_message_ends_nothing(cli: Cli, target: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(target)
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.content == 'bad' %}{{ raise_exception('no bad') }}{% endif %}"
        "{{ m.role + ':' + m.content }}{% endfor %}"
    )
    tokenizer.save_pretrained(target)
    result = say(cli, target, "bad", "good")
    assert "no bad" in result.stderr
    assert result.exit_code == 2
    assert result.stdout


@needs_smollm2
@pytest.mark.slow
def test_three_turns_with_a_real_model() -> None:
    talk = Session("chat", "-m", "smollm2", "--dtype", "fp32", "--temperature", "0", "-n", "24")
    try:
        talk.expect("> ")
        shown = ""
        for question in ("What is the capital of France?", "And of Italy?", "Say hello."):
            talk.send(f"{question}\n")
            shown += talk.expect("> ")
            talk.send("/stats\n")
            shown += talk.expect("> ")
        talk.press(CTRL_D)
        assert talk.end()[0] == 0
    finally:
        talk.process.kill()
        talk.process.join()
    assert "Paris" in shown
    for new, total in counts(shown)[1:]:
        # The question, what the template writes around it, and the last token of the answer before.
        assert new < 20 < total
