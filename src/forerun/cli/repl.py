"""The loop of `forerun chat`: reads messages and commands, streams answers."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from forerun.cli.conversation import Conversation
from forerun.cli.main import WRONG_USE
from forerun.cli.outcome import Outcome, SingleRequest, summary
from forerun.cli.output import NewOutput
from forerun.cli.prompt import show_prompt
from forerun.cli.session import keep
from forerun.cli.terminal import PlainOutput
from forerun.core import FinishReason
from forerun.errors import ForerunError, PromptError, UnknownNameError, counted
from forerun.files import MOST_BYTES, check_writable, size_text, write_file
from forerun.flag_values import read_value
from forerun.flags import flags_of
from forerun.measure.paired import Run
from forerun.progress import say

if TYPE_CHECKING:
    from forerun.cli.chat import ChatRequest

MARK = "> "
QUOTES = '"""'
ENDS = ("/bye", "/exit", "/quit", "exit")
NONE = "none"
_NUMBER = re.compile(r"\b\d[\d.]*\b")
HELP = """\
/system [TEXT]  Set the system message, or show it.
/clear          Forget the conversation, but not the system message.
/set NAME VALUE Set a sampling parameter of the answers to come, such as temperature 0.5.
/stats          Show what the last answer took.
/save FILE      Write the messages as JSON, to go on from with --messages.
/bye            End, as /exit, /quit, exit and Ctrl-D do.
//...           A message that begins with /.
\"\"\"             Begin and end a message of several lines; a pasted text is one message as it is."""


class Repl:
    """A conversation with a model, from a terminal or a pipe.

    Args:
        request: of the command.
        single: model, engine with room for one request, and sampling parameters of all answers.
        conversation: to go on with; a last message of the user's is answered first.
        new_output: returns where an answer is shown as it comes.
    """

    def __init__(
        self,
        request: ChatRequest,
        single: SingleRequest,
        conversation: Conversation,
        new_output: NewOutput,
    ) -> None:
        self._request, self._single, self._conversation = request, single, conversation
        self._engine, self._new_output = single.engine, new_output
        self._last: Outcome | None = None
        self._answered = False
        self._said: set[str] = set()
        self._code = 0
        self._in_terminal = sys.stdin is not None and sys.stdin.isatty()
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: click.echo(HELP, err=True),
            "/system": self._system,
            "/clear": self._clear,
            "/set": self._set,
            "/stats": self._stats,
            "/save": self._save,
        }

    def run(self) -> int:
        """Talk until the input ends; the exit code is 2 if anything in a pipe was refused."""
        try:
            return self._talk()
        finally:
            if self._answered:
                keep(self._engine, self._request.session, self._conversation.notes)

    def _talk(self) -> int:
        """Read and answer until the input ends; the exit code."""
        self._open()
        interrupted = False
        while True:
            try:
                line = self._read()
                if line is None or line.strip() in ENDS:
                    return self._code
                self._take(line)
                interrupted = False
            except KeyboardInterrupt:
                if interrupted or not self._in_terminal:
                    raise
                interrupted = True
                say("Ctrl-C again, Ctrl-D or /bye ends the conversation")
            except ForerunError as error:
                say(f"error: {error}")
                self._code = 0 if self._in_terminal else WRONG_USE

    def _open(self) -> None:
        if sys.stdin is None:
            raise PromptError("standard input is closed; give it a file, a pipe or a terminal.")
        if self._in_terminal:
            with suppress(ImportError):
                import readline  # `input` then edits lines and remembers them.

                # Python switches it off; a pasted text of several lines would be as many messages.
                readline.parse_and_bind("set enable-bracketed-paste on")
            say(f"chat with {self._single.model}; /help lists the commands, Ctrl-D ends")
        self._new_output().start(legend=self._request.speculative)
        messages = self._conversation.messages
        if messages and messages[-1]["role"] == "user":
            self._answer(messages.pop())

    def _read(self) -> str | None:
        """The next line; None at the end."""
        if not self._in_terminal:
            # Input that is not text ends the conversation: a binary file has many such lines.
            content = sys.stdin.buffer.readline(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                size = size_text(MOST_BYTES)
                raise click.ClickException(
                    f"a line of standard input is longer than {size}; give shorter ones."
                )
            try:
                return content.decode() if content else None
            except UnicodeDecodeError:
                raise click.ClickException("standard input is not UTF-8 text.") from None
        if sys.stdout.isatty():
            return self._typed(MARK)
        click.echo(MARK, nl=False, err=True)
        return self._typed()

    def _typed(self, mark: str = "") -> str | None:
        """A line from the terminal; None at the end."""
        try:
            return input(mark)
        except EOFError:
            click.echo(err=True)
            return None
        except UnicodeDecodeError:
            raise PromptError("that line is not UTF-8 text; type it again.") from None

    def _take(self, line: str) -> None:
        """Run a command or answer a message; several lines, or text in three quotes, are a message."""
        text = line.strip()
        if "\n" not in text:
            if text.startswith(QUOTES):
                text = self._quoted(text).strip()
            elif text.startswith("//"):
                text = text.removeprefix("/")
            elif text.startswith("/"):
                self._obey(text)
                return
        if text:
            self._answer({"role": "user", "content": text})

    def _quoted(self, text: str) -> str:
        """A message that begins with three quotes, read up to the closing ones."""
        text = text.removeprefix(QUOTES)
        while not text.rstrip().endswith(QUOTES):
            more = self._read()
            if more is None:
                break
            text += "\n" + more.removesuffix("\n")
        return text.rstrip().removesuffix(QUOTES)

    def _obey(self, text: str) -> None:
        """Run a line that begins with `/`.

        Raises:
            UnknownNameError: for a command that does not exist.
        """
        name, _, rest = text.partition(" ")
        if name not in self._commands:
            raise UnknownNameError("command", name, [*self._commands, "/bye"])
        self._commands[name](rest.strip())

    def _answer(self, question: dict[str, Any]) -> None:
        prompt = self._conversation.prompt(question)
        while (over := len(prompt.token_ids) + 1 - self._engine.max_context) > 0:
            self._make_room(question, over)
            prompt = self._conversation.prompt(question)
        if self._request.template.show_prompt:
            show_prompt(prompt)
        single = replace(self._single, prompt=prompt)
        run = Run(self._engine.stream(prompt.token_ids, single.params), self._engine.policy)
        output = self._new_output()
        self._last = Outcome(single, run)
        try:
            run.follow(output.event)
        except KeyboardInterrupt:
            if not self._in_terminal:
                output.end(run.completion.text)
                raise
        finally:
            self._answered |= bool(run.completion.token_ids)
        output.end(run.completion.text)
        self._keep(question)
        self._say_given_up()

    def _say_given_up(self) -> None:
        """Say once of each drafter that was given up, whatever numbers change later."""
        policy = self._engine.policy
        for sentence in [] if policy is None else policy.given_up():
            kind = _NUMBER.sub("", sentence)
            if kind not in self._said:
                self._said.add(kind)
                say(sentence)

    def _keep(self, question: dict[str, Any]) -> None:
        """Remember the last answer, complete or not."""
        assert self._last is not None
        completion = self._last.run.completion
        if not completion.token_ids:
            say("ended before the first token; the question is dropped")
            return
        self._conversation.keep(question, self._last.request.prompt, completion)
        if completion.finish_reason == FinishReason.LENGTH:
            count = len(completion.token_ids)
            say(f"cut after {counted(count, 'token')}; --max-tokens and --max-context allow more")

    def _make_room(self, question: dict[str, Any], over: int) -> None:
        """Drop the oldest turn of a conversation that is too long.

        Raises:
            PromptError: for a message that is too long alone.
        """
        text = f"the conversation is {counted(over, 'token')} over the context of {self._engine.max_context}"
        alone = self._conversation.prompt(question, alone=True)
        if len(alone.token_ids) >= self._engine.max_context:
            raise PromptError(
                f"{text}, as is this message alone; shorten it or raise --max-context."
            )
        self._conversation.drop_oldest()
        say(f"{text}; its oldest turn is dropped")

    def _system(self, text: str) -> None:
        if text:
            self._conversation.set_system(text)
        say(f"system message: {self._conversation.system or 'none of yours'}")

    def _clear(self, _: str) -> None:
        self._conversation.reset()
        say("the conversation begins anew")

    def _set(self, text: str) -> None:
        name, _, value = text.removeprefix("parameter ").strip().partition(" ")
        name, value = name.replace("-", "_"), value.strip()
        # The sampling parameters that are options of the command.
        options = flags_of(type(self._request))
        flags = {flag.name: flag for flag in options if flag.path[0] == "sampling"}
        if name not in flags:
            raise UnknownNameError("parameter", name, flags)
        may_be_none = {"type": "null"} in flags[name].schema.get("anyOf", ())
        try:
            is_none = may_be_none and value.lower() == NONE
            read: Any = None if is_none else read_value(flags[name], value)
        except ValueError as error:
            raise PromptError(f"/set {name}: {error}") from error
        single = self._single
        origins = {known: single.origins[known] for known in single.origins if known != name}
        params = replace(single.params, **{name: read})
        self._single = replace(single, params=params, origins=origins)
        say(f"{name} is {read}")

    def _stats(self, _: str) -> None:
        if self._last is None:
            raise PromptError("there is no answer yet.")
        PlainOutput().stderr.print(summary(self._last))
        stats = self._last.run.completion.stats
        new = stats.prompt_tokens - stats.num_cached_tokens
        total = self._engine.stats
        say(
            f"prefill ran {new} of {stats.prompt_tokens} prompt tokens, the cache held the rest; "
            f"all answers: {total.num_emitted_tokens} tokens"
        )

    def _save(self, file: str) -> None:
        if not file:
            raise PromptError("/save needs the name of a file.")
        check_writable("/save", file)
        messages = self._conversation.messages
        content = json.dumps(messages, ensure_ascii=False, indent=2)
        write_file(f"conversation of {counted(len(messages), 'message')}", file, content + "\n")
