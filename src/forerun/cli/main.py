"""`forerun`: finds the command, runs it, and turns what went wrong into one line and an exit code.

Exit codes: 0 done, 1 a defect found, 2 wrong use, 130 interrupted, 141 nobody reads the output.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from typing import Any

import click

from forerun import __version__
from forerun.errors import ForerunError

COMMANDS = {
    "bench": ("forerun.cli.bench", "What the CPU kernels reach on this machine."),
    "generate": ("forerun.cli.generate", "Complete a prompt: the model's own text, sooner."),
    "info": ("forerun.cli.info", "What a model is, what it needs and what would draft for it."),
    "prove": ("forerun.cli.prove", "Prove that speculation leaves the distribution as it is."),
    "simulate": ("forerun.cli.simulate", "What speculation would gain, without running a model."),
}

WRONG_USE = 2
INTERRUPTED = 130
# What a shell reports for a process that SIGPIPE ended.
NOBODY_READS = 141


class Application(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            raise click.exceptions.NoSuchCommand(args[0], possibilities=COMMANDS, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # From the table: the help of the whole program imports no command.
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise
            _discard_stdout()
            raise click.exceptions.Exit(NOBODY_READS) from None
        return result

    def main(self, *args: Any, **options: Any) -> Any:
        """Run, and exit with the code; the arguments are those of `click.Command.main`."""
        options["standalone_mode"] = False
        try:
            code = super().main(*args, **options)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = WRONG_USE
        except click.ClickException as error:
            _say_error(error.format_message())
            code = WRONG_USE
        except ForerunError as error:
            _say_error(str(error))
            code = WRONG_USE
        except click.Abort as abort:
            # click takes the end of any file for an interruption; here it is an error like others.
            if isinstance(abort.__cause__, EOFError):
                raise abort.__cause__ from None
            code = INTERRUPTED
        sys.exit(code or 0)


def _say_error(message: str) -> None:
    line = " ".join(part.strip() for part in message.splitlines() if part.strip())
    click.echo(f"forerun: error: {line}", err=True)


def _discard_stdout() -> None:
    """Send what is still buffered nowhere, so that the interpreter's exit does not complain."""
    # A stream without a file has nothing to be flushed.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


application = Application(
    "forerun",
    help="Exact speculative decoding: a language model's own text, sooner.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
application = click.version_option(__version__, message="%(prog)s %(version)s")(application)


def main() -> None:
    """The entry point of the command `forerun`."""
    application.main(prog_name="forerun")


if __name__ == "__main__":
    main()
