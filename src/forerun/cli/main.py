"""`forerun`: finds the command, runs it, and turns what went wrong into one line and an exit code.

Exit codes: 0 done, 1 a defect found, 2 wrong use, 130 interrupted, 141 the output was closed.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Any, ClassVar, TextIO

import click

from forerun import __version__
from forerun.cli import EXAMPLE
from forerun.cli.groups import Group, LazyGroup, Row
from forerun.errors import ConfigError, ForerunError
from forerun.files import reason
from forerun.progress import heard_by

DIFFUSION = {
    "bench": Row(
        "forerun.diffusion.commands.bench",
        "What each method costs and saves, and the roofline.",
        example="forerun diffusion bench --methods speculative --steps 128",
        assumed="all methods, with the small model of digits",
        files=("plot",),
    ),
    "distill": Row(
        "forerun.diffusion.commands.distill",
        "Halve a model's steps by training, again and again.",
        example="forerun diffusion distill --pipeline images --output few-steps",
    ),
    "sample": Row(
        "forerun.diffusion.commands.sample",
        "Make images or clips, with fewer passes if you like.",
        example="forerun diffusion sample --method speculative --output digits.png",
        assumed="ten digits of the small model that comes along",
    ),
}
TRAIN = {
    "data": Row(
        "forerun.training.data_request",
        "Have a model write and answer prompts to train on.",
        example="forerun train data smollm2 --keep-out questions.jsonl",
        assumed="with texts that {model} writes, into {model}-data.jsonl",
    ),
    **{
        kind: Row(
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
}
COMMANDS: dict[str, Row | Group] = {
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
    "diffusion": Group(
        "Diffusion models with fewer network passes, one way of them exact.",
        DIFFUSION,
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
    "train": Group(
        "Train drafters for a model, from the model's own answers.",
        TRAIN,
    ),
    "tune": Row(
        "forerun.bench.tune",
        "Which drafter and length to use for a model and your prompts.",
        example="forerun tune --model smollm2 --prompts mine.txt --output tuned.toml",
        assumed="trying the likely drafters of {model} on built-in prompts, for some minutes",
        files=("html", "markdown"),
    ),
}


def rows() -> dict[str, Row]:
    """Commands that answer a request, by the words that call them."""
    single = {name: row for name, row in COMMANDS.items() if isinstance(row, Row)}
    groups = {name: row for name, row in COMMANDS.items() if isinstance(row, Group)}
    inner = {f"{name} {word}": row for name in groups for word, row in groups[name].rows.items()}
    return single | inner


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


class _Output(io.FileIO):
    """A file that remembers its write errors."""

    failures: ClassVar[list[tuple[int | None, str]]] = []
    """Number and text of each error; an exception would keep its frames alive."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failures.append((error.errno, reason(error)))
            raise


class _Talk(io.FileIO):
    """A file that drops what it cannot write."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def prepare_streams() -> None:
    """Replace standard error by a stream that never fails, standard output by one that notes errors.

    Raises:
        ConfigError: where standard output is closed.
    """
    # A file that is opened later must not become a standard stream.
    with contextlib.suppress(OSError):
        while (null := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass
        os.close(null)
    if sys.stderr is not None:
        sys.stderr = _again(sys.stderr, _Talk)
    if sys.stdout is None:
        raise ConfigError("standard output is closed; give it a file, a pipe or a terminal.")
    sys.stdout = _again(sys.stdout, _Output)


def output_failure() -> tuple[int | None, str] | None:
    """Number and text of the first error of standard output; None without an error."""
    return _Output.failures[0] if _Output.failures else None


def discard_output() -> None:
    """Discard buffered output, so that the interpreter reports no error at its exit."""
    # A stream without a file has nothing to be flushed.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _again(stream: TextIO, kind: type[io.FileIO]) -> TextIO:
    """A copy of a stream that writes through another class of files."""
    assert isinstance(stream, io.TextIOWrapper)
    return io.TextIOWrapper(
        io.BufferedWriter(kind(stream.fileno(), "wb", closefd=False)),
        stream.encoding,
        stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


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
    try:
        prepare_streams()
    except ForerunError as error:
        sys.exit(_refuse(str(error)))
    application.main(prog_name="forerun")


if __name__ == "__main__":
    main()
