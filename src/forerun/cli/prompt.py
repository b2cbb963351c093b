"""Prompts: reading their texts, and applying the chat template."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from forerun.cli import EXAMPLE
from forerun.engine.chat import TemplateOptions
from forerun.errors import PromptError
from forerun.files import parse_json, printable, read_stdin, read_text
from forerun.progress import say

if TYPE_CHECKING:
    from forerun.models import Checkpoint


@dataclass(frozen=True)
class SentPrompt:
    """A prompt as the model gets it.

    Args:
        text: as it was sent, with the special tokens that a chat template writes.
        token_ids: of that.
        template: whether the tokenizer's chat template made it.
    """

    text: str
    token_ids: list[int]
    template: bool


def read_prompt(
    text: str | None, file: str | None, messages: str | None
) -> str | list[dict[str, Any]]:
    """The given text or messages; `-` or nothing at all stands for standard input.

    Args:
        text: the prompt.
        file: a file that holds it.
        messages: a file that holds a conversation.

    Raises:
        PromptError: for a prompt that is missing, empty, too long or not text, and for invalid
            messages.
    """
    if messages is not None:
        return read_messages(messages)
    if text is None or text == "-":
        if text is None and file is None and (sys.stdin is None or sys.stdin.isatty()):
            raise PromptError(
                "there is no prompt; give it as an argument, in a file with --prompt-file, or pipe it "
                f"in: {EXAMPLE}"
            )
        text = _read(file or "-", "prompt file")
    if not text:
        raise PromptError("the prompt is empty; give at least one character to go on from.")
    return text


def read_messages(file: str) -> list[dict[str, Any]]:
    """The messages in a JSON file: a list of them, or an object with one as `messages`.

    Raises:
        PromptError: for a file that cannot be read, or holds anything else.
    """
    from forerun.engine.chat import check_messages

    where = "standard input" if file == "-" else f"messages file {printable(file)}"
    text = _read(file, "messages file")
    if not text.strip():
        raise PromptError(f'{where} is empty; give [{{"role": "user", "content": "Hello"}}].')
    # Editors of Windows begin files with a mark.
    content = parse_json(text.removeprefix("\ufeff"), where, PromptError)
    if isinstance(content, dict):
        if "messages" not in content:
            raise PromptError(
                f"{where} holds an object without 'messages'; give a list of messages."
            )
        content = content["messages"]
    try:
        return check_messages(content)
    except PromptError as error:
        raise PromptError(f"{where}: {error}") from None


def read_prediction(file: str | None) -> str:
    """The expected output; empty without a file.

    Raises:
        PromptError: for a file that cannot be read, is empty, too long or not text.
    """
    if file is None:
        return ""
    text = read_text(file, "prediction file", PromptError)
    if not text:
        raise PromptError(f"prediction file {file} is empty; leave it out.")
    return text


def make_prompt(
    checkpoint: Checkpoint,
    content: str | list[dict[str, Any]],
    options: TemplateOptions,
    *,
    raw: bool = False,
) -> SentPrompt:
    """The prompt in the tokenizer's chat template; unchanged without a template, or if `raw`.

    Raises:
        PromptError: for messages that the template refuses, and for messages without a template.
        ConfigError: for a variable that the template does not read.
    """
    from forerun.engine.chat import ChatTemplate, encode_text

    tokenizer = checkpoint.tokenizer
    template = None if raw else ChatTemplate.of(tokenizer)
    if template is not None:
        variables = dict(options.template_var)
        messages = with_system(content, options.system)
        _warn_of_special_tokens(tokenizer, content)
        text = template.render(messages, variables)
        return SentPrompt(text, template.encode(messages, variables), template=True)
    needing = {
        "messages": not isinstance(content, str),
        "system": options.system,
        "template-var": options.template_var,
    }
    for name, given in needing.items():
        if given:
            raise PromptError(
                f"--{name} needs a chat template, and {checkpoint.name} has none (a base model); leave it "
                "out and give the whole prompt as text."
            )
    assert isinstance(content, str)
    return SentPrompt(content, encode_text(tokenizer, content), template=False)


def show_prompt(prompt: SentPrompt) -> None:
    """Show a prompt on standard error, with control characters made visible in a terminal."""
    from forerun.engine.text import VISIBLE

    text = prompt.text.translate(VISIBLE) if sys.stderr.isatty() else prompt.text
    click.echo(text, err=True)


def with_system(content: str | list[dict[str, Any]], system: str | None) -> list[dict[str, Any]]:
    messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
    if system is None:
        return messages
    if any(message["role"] == "system" for message in messages):
        raise PromptError(
            "--system is given, and the messages hold a system message; leave one out."
        )
    return [{"role": "system", "content": system}, *messages]


def _warn_of_special_tokens(tokenizer: Any, content: str | list[dict[str, Any]]) -> None:
    tokens = [token for token in tokenizer.all_special_tokens if token in content]
    if isinstance(content, str) and tokens:
        say(
            f"warning: the prompt holds {tokens[0]}, and is put into the chat template; if it has been "
            "through one already, add --raw."
        )


def _read(file: str, what: str) -> str:
    return read_stdin(PromptError) if file == "-" else read_text(file, what, PromptError)
