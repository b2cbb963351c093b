"""`forerun`: finds the command, runs it, and turns what went wrong into one line and an exit code.

Exit codes: 0 done, 1 a defect found, 2 wrong use, 130 interrupted, 141 the output was closed.
"""

from __future__ import annotations

import errno
import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import click

from forerun import __version__
from forerun.cli import EXAMPLE
from forerun.cli.output import discard_output, output_failure, prepare_streams
from forerun.errors import ForerunError
from forerun.foreign import COMMANDS as FOREIGN_COMMANDS
from forerun.progress import heard_by


class Row(NamedTuple):
    """A command in the table.

    Args:
        module: its module, behind a colon the function that answers its request, `run` unless named, and
            behind another the class of the request, if the function takes several.
        about: a line for the help.
        example: a command line that works, shown if arguments are missing.
        assumed: what it does without arguments, where it does something; `{model}` is its model.
        files: options of `Files` that it has.
        torch: whether it loads torch, which takes seconds.
        live: whether it shows text and progress itself, as they come: its function takes a function that
            returns an `Output` too.
        json: whether it has a result, and so `--json`.
    """

    module: str
    about: str
    example: str = ""
    assumed: str = ""
    files: Sequence[str] = ()
    torch: bool = True
    live: bool = False
    json: bool = True


COMMANDS: dict[str, Row] = {
    "bench": Row(
        "forerun.bench.request",
        "Which drafter pays for your model and prompts, and how much.",
        example="forerun bench --model smollm2 --prompts mine.jsonl",
        assumed="measuring the likely drafters on built-in prompts",
        files=("html", "markdown"),
    ),
    "chat": Row(
        "forerun.cli.chat",
        "Talk with a model; each turn runs only its new tokens.",
        example='forerun chat --model smollm2 --system "You are brief."',
        live=True,
        json=False,
    ),
    "check": Row(
        "forerun.export.requests:check",
        "Does a trained head load in other engines, and draft as trained?",
        example="forerun check ./my-head --model smollm2 --engines vllm,sglang",
    ),
    "demo": Row(
        "forerun.cli.demo",
        "Three questions, answered with speculation and without.",
        example="forerun demo",
        assumed="with {model}",
        live=True,
    ),
    "diffusion bench": Row(
        "forerun.diffusion.commands.bench",
        "What each method costs and saves, and the roofline.",
        example="forerun diffusion bench --methods speculative --steps 128",
        assumed="all methods, with the small model of digits",
        files=("plot",),
    ),
    "diffusion distill": Row(
        "forerun.diffusion.commands.distill",
        "Halve a model's steps by training, again and again.",
        example="forerun diffusion distill --pipeline images --output few-steps",
    ),
    "diffusion sample": Row(
        "forerun.diffusion.commands.sample",
        "Make images or clips, with fewer passes if you like.",
        example="forerun diffusion sample --method speculative --output digits.png",
        assumed="ten digits of the small model that comes along",
    ),
    "export": Row(
        "forerun.export.requests:export",
        "Write a trained head as other engines load it.",
        example="forerun export ./my-head --output ./portable --model smollm2",
    ),
    "generate": Row(
        "forerun.cli.generate",
        "Answer or complete a prompt: the model's own text.",
        example=EXAMPLE,
        live=True,
    ),
    "info": Row(
        "forerun.cli.info",
        "What a model is, what it needs and what would draft for it.",
        example="forerun info Qwen/Qwen3-4B",
        assumed="about {model}",
    ),
    "prove": Row(
        "forerun.proof.request",
        "Prove that speculation leaves the distribution as it is.",
        example="forerun prove --model Qwen/Qwen3-0.6B --method ngram",
        assumed="proving {model} on held-out prompts, for about a minute",
    ),
    "roofline": Row(
        "forerun.bench.roofline",
        "What bounds a model's forwards on this machine.",
        example="forerun roofline -m smollm2",
        assumed="about {model}",
        files=("plot",),
    ),
    "serve": Row(
        "forerun.server.request",
        "Serve a model to OpenAI's clients.",
        example="forerun serve -m smollm2",
        assumed="{model} on localhost",
        torch=False,
        json=False,
    ),
    "simulate": Row(
        "forerun.simulation.request",
        "What speculation would gain, without running a model.",
        example="forerun simulate --hardware h100 --target llama-3.1-70b --draft llama-3.1-8b",
        assumed="assuming usual acceptances and a draft at a tenth of the target's cost",
        files=("plot",),
        torch=False,
    ),
    "train data": Row(
        "forerun.training.requests",
        "Have a model write and answer prompts to train on.",
        example="forerun train data smollm2 --keep-out questions.jsonl",
        assumed="with texts that {model} writes, into {model}-data.jsonl",
    ),
    **{
        f"train {kind}": Row(
            f"forerun.training.requests:train:{request}",
            about,
            example=f"forerun train {kind} smollm2 --minutes 60",
        )
        for kind, request, about in (
            ("draft", "DraftModelRequest", "Train a draft model: a small one, distilled."),
            ("eagle3", "Eagle3Request", "Train an EAGLE-3 head: a token a pass."),
            ("medusa", "MedusaRequest", "Train Medusa's heads: all tokens from one state."),
        )
    },
    "tune": Row(
        "forerun.bench.tune",
        "Which drafter and length to use for a model and your prompts.",
        example="forerun tune --model smollm2 --prompts mine.txt --output tuned.toml",
        assumed="trying the likely drafters of {model} on built-in prompts, for some minutes",
        files=("html", "markdown"),
    ),
}
"""Commands by the words that call them."""
GROUPS = {
    "diffusion": "Diffusion models with fewer network passes, one way of them exact.",
    "train": "Train drafters for a model, from the model's own answers.",
}
"""Lines for the help on the first words that several commands share."""


class LazyGroup(click.Group):
    """A group whose help imports none of its commands.

    Args:
        table: its commands, by the words behind the group's own.
    """

    def __init__(self, name: str, table: Mapping[str, Row], **settings: Any) -> None:
        super().__init__(name, **settings)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({words.partition(" ")[0] for words in self.table})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.table:
            # Here: the help of a group needs no options.
            from forerun.cli.commands import command_of

            return command_of(cmd_name, self.table[cmd_name])
        split = ((words.partition(" "), row) for words, row in self.table.items())
        inner = {rest: row for (first, _, rest), row in split if first == cmd_name}
        return LazyGroup(cmd_name, inner, help=GROUPS[cmd_name]) if inner else None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; `help COMMAND` is `COMMAND --help`."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in FOREIGN_COMMANDS and ctx.parent is None:
            text = f"No such command {args[0]!r}: {FOREIGN_COMMANDS[args[0]]}."
            raise click.UsageError(text, ctx)
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in known:
            raise click.exceptions.NoSuchCommand(args[0], possibilities=known, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        about = GROUPS | {name: row.about for name, row in self.table.items()}
        with formatter.section("Commands"):
            formatter.write_dl([(name, about[name]) for name in names])


def every_command(group: LazyGroup) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands below a group with the words that call them; a group comes before its own."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield tuple(name.split()), command
        if isinstance(command, LazyGroup):
            yield from (((name, *words), inner) for words, inner in every_command(command))


WRONG_USE = 2
INTERRUPTED = 130
# What a shell reports for a process that SIGPIPE ended.
OUTPUT_CLOSED = 141


class Application(LazyGroup):
    """The group of all commands, which turns errors into exit codes."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with heard_by(lambda text: click.echo(f"forerun: {text}", err=True)):
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None

    def main(self, *args: Any, **options: Any) -> Any:
        """Run, and exit with the code; the arguments are those of `click.Command.main`."""
        options["standalone_mode"] = False
        try:
            code = super().main(*args, **options)
            sys.stdout.flush()
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = WRONG_USE
        except click.ClickException as error:
            code = _refuse(error.format_message())
        except ForerunError as error:
            code = _refuse(str(error))
        except click.Abort as abort:
            # click takes the end of any file for an interruption; here it is an error like others.
            if isinstance(abort.__cause__, EOFError):
                raise abort.__cause__ from None
            code = INTERRUPTED
        except (OSError, SystemExit):
            # click and rich leave by themselves when the reader of the output does.
            failure = output_failure()
            if failure is None:
                raise
            discard_output()
            number, text = failure
            left = number == errno.EPIPE
            code = OUTPUT_CLOSED if left else _refuse(f"standard output cannot be written: {text}.")
        sys.exit(code or 0)


def _refuse(message: str) -> int:
    """Say what is wrong, on one line, and return the exit code."""
    line = " ".join(part.strip() for part in message.splitlines() if part.strip())
    click.echo(f"forerun: error: {line}", err=True)
    return WRONG_USE


application = Application(
    "forerun",
    COMMANDS,
    help="Exact speculative decoding: a language model's own text, sooner.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
application = click.version_option(__version__, message="%(prog)s %(version)s")(application)


def main() -> None:
    """The entry point of the command `forerun`."""
    # Imports create a million objects that stay: to look for garbage after each 700 is a tenth of their time.
    gc.set_threshold(50_000, 10, 10)
    try:
        prepare_streams()
    except ForerunError as error:
        sys.exit(_refuse(str(error)))
    application.main(prog_name="forerun")


if __name__ == "__main__":
    main()
