"""What the model is sent: text, or messages through the tokenizer's chat template."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.helpers.command_line import Cli, Write
from tests.helpers.refusals import refused

TEMPLATE = (
    "{% if messages[0].role != 'system' %}{{ '[be terse]' }}{% endif %}"
    "{% for message in messages %}{{ '[' + message.role + ']' + message.content }}{% endfor %}"
    "{% if shout is defined and shout %}{{ '[' ~ shout ~ ']' }}{% endif %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)
CONVERSATION = [
    {"role": "user", "content": "def add"},
    {"role": "assistant", "content": "ok"},
    {"role": "user", "content": "go on"},
]


@pytest.fixture
def chat(cli: Cli, tmp_path: Path) -> Cli:
    """The same models; the target's tokenizer has a template."""
    target = tmp_path / "chat"
    shutil.copytree(cli.target, target)
    tokenizer = AutoTokenizer.from_pretrained(target)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(target)
    return Cli(str(target), cli.draft)


def sent(cli: Cli, *args: str, **settings: Any) -> tuple[bool, str]:
    """What `--json` says that was sent, which `--show-prompt` shows."""
    greedy = ("--temperature", "0", "--max-tokens", "2", "--json", "--show-prompt")
    result = cli.generate(*args, *greedy, **settings)
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content["prompt"] in result.stderr
    tokenizer = AutoTokenizer.from_pretrained(cli.target)
    assert content["prompt_tokens"] == len(tokenizer.encode(content["prompt"]))
    return content["template"], content["prompt"]


def test_a_prompt_goes_through_the_template(chat: Cli) -> None:
    expected = (True, "[be terse][user]def add[assistant]")
    assert sent(chat, "def add") == expected
    assert sent(chat, "--prompt", "def add") == expected
    assert sent(chat, input="def add") == expected
    assert sent(chat, "def add", "--raw") == (False, "def add")


@pytest.mark.parametrize("system", ["be kind", ""])
def test_a_system_message_comes_first(chat: Cli, system: str) -> None:
    expected = f"[system]{system}[user]hi[assistant]"
    assert sent(chat, "hi", "--system", system) == (True, expected)


@pytest.mark.parametrize("content", [CONVERSATION, {"messages": CONVERSATION, "model": "x"}])
def test_messages_from_a_file(chat: Cli, write: Write, content: Any) -> None:
    expected = (True, "[be terse][user]def add[assistant]ok[user]go on[assistant]")
    file = write("messages.json", json.dumps(content))
    assert sent(chat, "--messages", file) == expected
    assert sent(chat, "--messages", "-", input=json.dumps(content)) == expected
    assert sent(chat, "--messages", "-", input="\ufeff" + json.dumps(content)) == expected
    with_system = sent(chat, "--messages", file, "--system", "s")
    assert with_system[1].startswith("[system]s[user]def add")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("shout=true", "[True]"),
        ("shout=True", "[True]"),
        ("shout=false", ""),
        ("shout=False", ""),
        ("shout=3", "[3]"),
        ("shout=0", ""),
        ("shout=loud", "[loud]"),
        ('shout="3"', "[3]"),
        ("shout=a=b", "[a=b]"),
        ("shout=NaN", "[NaN]"),
        ("shout=null", ""),
        ("shout=", ""),
    ],
)
def test_template_variables(chat: Cli, value: str, shown: str) -> None:
    text = sent(chat, "hi", "--template-var", value)[1]
    assert text == f"[be terse][user]hi{shown}[assistant]"


def test_a_model_without_a_template_goes_on_raw_and_says_so(cli: Cli) -> None:
    result = cli.generate("--prompt", "def add")
    assert result.exit_code == 0
    lines = [line for line in result.stderr.splitlines() if "no chat template" in line]
    assert lines == [
        f"forerun: {cli.target} has no chat template (a base model): the prompt is sent as it is, as "
        "with --raw"
    ]
    assert "no chat template" not in cli.generate("--prompt", "def add", "--raw").stderr


def test_the_panel_says_which(chat: Cli) -> None:
    assert "by the chat template" in chat.generate("hi").stderr
    assert "raw" in chat.generate("hi", "--raw").stderr


def test_a_prompt_that_is_templated_already(chat: Cli) -> None:
    result = chat.generate("<|endoftext|>hi")
    assert "holds <|endoftext|>" in result.stderr
    assert "--raw" in result.stderr
    assert "holds" not in chat.generate("<|endoftext|>hi", "--raw").stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("hi", "--raw", "--system", "s"), ["--raw", "--system", "exclude"]),
        (("--raw", "--messages", "x"), ["--raw", "--messages", "exclude"]),
        (("hi", "--raw", "--template-var", "a=1"), ["--raw", "--template-var", "exclude"]),
        (("hi", "--messages", "x"), ["the argument PROMPT", "--messages", "exclude"]),
        (("-p", "hi", "--messages", "x"), ["--prompt", "--messages", "exclude"]),
        (("--prompt-file", "x", "--messages", "x"), ["--prompt-file", "--messages", "exclude"]),
        (("hi", "--template-var", "shot=1"), ["'shot'", "'shout'"]),
        (("hi", "--template-var", "shout"), ["'shout'", "NAME=VALUE"]),
        (("hi", "--template-var", "=1"), ["'=1'", "NAME=VALUE"]),
        (("hi", "--template-var", "a=1", "--template-var", "a=2"), ["a twice"]),
        (("--messages", "/no/such"), ["/no/such", "no such file"]),
        (("--messages", "/"), ["directory"]),
    ],
    ids=str,
)
def test_wrong_options(chat: Cli, options: tuple[str, ...], words: list[str]) -> None:
    refused(chat.generate(*options), *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["empty", '"role"']),
        (" \n", ["empty"]),
        ("{", ["not JSON"]),
        ("[]", ["empty"]),
        ("3", ["messages"]),
        ('"hello"', ["messages"]),
        ("null", ["messages"]),
        ("{}", ["'messages'"]),
        ('{"messages": 3}', ["3"]),
        ('[{"role": "user"}]', ["content"]),
        ('[{"content": "a"}]', ["role"]),
        ("[3]", ["message 1"]),
        ('[{"role": "user", "content": [{"type": "image"}]}]', ["'image'", "only text"]),
        ('[{"role": "user", "content": {"type": "image"}}]', ["a part as content", "a list"]),
        ('[{"role": "user", "content": "\\ud800"}]', ["UTF-8"]),
        ("[" * 100_000, ["nested too deep"]),
        (b"\xff\xfe\x00", ["UTF-8"]),
    ],
    ids=lambda value: str(value)[:20],
)
def test_messages_that_are_none(
    chat: Cli, write: Write, text: str | bytes, words: list[str]
) -> None:
    refused(chat.generate("--messages", write("bad.json", text)), "bad.json", *words)
    refused(chat.generate("--messages", "-", input=text), "standard input", *words)


def test_two_system_messages(chat: Cli, write: Write) -> None:
    file = write("m.json", json.dumps([{"role": "system", "content": "a"}, *CONVERSATION]))
    refused(chat.generate("--messages", file, "--system", "b"), "--system", "leave one out")


def test_what_needs_a_template(cli: Cli, write: Write) -> None:
    file = write("m.json", json.dumps(CONVERSATION))
    refused(cli.generate("--messages", file), "--messages", "no", "chat template", cli.target)
    refused(cli.generate("hi", "--system", "s"), "--system", "chat template")
    refused(cli.generate("hi", "--template-var", "a=1"), "--template-var", "chat template")


def test_a_weaker_source_yields(chat: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_SYSTEM", "s")
    monkeypatch.setenv("FORERUN_TEMPLATE_VAR", "shout=1")
    assert sent(chat, "hi", "--raw") == (False, "hi")
    monkeypatch.setenv("FORERUN_RAW", "1")
    monkeypatch.delenv("FORERUN_TEMPLATE_VAR")
    monkeypatch.delenv("FORERUN_SYSTEM")
    assert sent(chat, "hi", "--system", "s")[0]
    assert sent(chat, "hi") == (False, "hi")


def test_other_tools_name_for_the_system_message(chat: Cli) -> None:
    assert sent(chat, "hi", "--system_prompt", "s")[1].startswith("[system]s")


def with_generation_config(cli: Cli, tmp_path: Path, **content: Any) -> Cli:
    target = tmp_path / "defaults"
    shutil.copytree(cli.target, target)
    file = target / "generation_config.json"
    file.write_text(json.dumps({"eos_token_id": 0, **content}), encoding="utf-8")
    return Cli(str(target), cli.draft)


def words_of(panel: str) -> str:
    return " ".join(panel.replace("│", " ").split())


def test_the_models_own_sampling_defaults(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Write
) -> None:
    theirs = {"temperature": 0.6, "top_k": 20, "top_p": 0.9}
    cli = with_generation_config(cli, tmp_path, do_sample=True, **theirs)
    content = cli.json()
    assert {name: content["sampling"][name] for name in theirs} == theirs
    assert set(content["sampling_from_model"]) == set(theirs)
    seeded = cli.json("--seed", "1")
    explicit = cli.json("--seed", "1", "--temperature", "0.6", "--top-k", "20", "--top-p", "0.9")
    assert seeded["token_ids"] == explicit["token_ids"]
    assert explicit["sampling_from_model"] == []
    content = cli.json("--temperature", "0")
    assert content["sampling"]["temperature"] == 0
    assert set(content["sampling_from_model"]) == {"top_k", "top_p"}
    monkeypatch.setenv("FORERUN_TOP_K", "5")
    file = write("a.toml", "top-p = 0.5")
    content = cli.json("--config", file)
    assert (content["sampling"]["top_k"], content["sampling"]["top_p"]) == (5, 0.5)
    assert content["sampling_from_model"] == ["temperature"]
    assert "temperature 0.6, top_p 0.9 (the model's own)" in words_of(
        cli.generate("--prompt", "a").stderr
    )


def test_a_model_that_is_greedy_by_itself(cli: Cli, tmp_path: Path) -> None:
    cli = with_generation_config(cli, tmp_path, do_sample=False)
    assert cli.json()["token_ids"] == cli.json("--temperature", "0")["token_ids"]
    panel = words_of(cli.generate("--prompt", "a").stderr)
    assert "greedy (temperature 0) (the model's own)" in panel


def test_defaults_that_are_not_allowed(cli: Cli, tmp_path: Path) -> None:
    cli = with_generation_config(cli, tmp_path, temperature=-1)
    refused(cli.generate("--prompt", "a"), "generation_config.json", "temperature")
