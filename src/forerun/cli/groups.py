"""Groups of commands that are imported when they are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import click

from forerun.foreign import COMMANDS


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


class Group(NamedTuple):
    """A group of commands in the table.

    Args:
        about: a line for the help.
        rows: its commands.
    """

    about: str
    rows: Mapping[str, Row]


CommandTable = Mapping[str, Row | Group]
"""Commands by name."""


class LazyGroup(click.Group):
    """A group whose help imports none of its commands.

    Args:
        table: its commands.
    """

    def __init__(self, name: str, table: CommandTable, **settings: Any) -> None:
        super().__init__(name, **settings)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        row = self.table[cmd_name]
        if isinstance(row, Group):
            return LazyGroup(cmd_name, row.rows, help=row.about)
        from forerun.cli.commands import command_of  # Here: the help of a group needs no options.

        return command_of(cmd_name, row)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; `help COMMAND` is `COMMAND --help`."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in COMMANDS and ctx.parent is None:
            text = f"No such command {args[0]!r}: {COMMANDS[args[0]]}."
            raise click.UsageError(text, ctx)
        if args and not args[0].startswith("-") and args[0] not in self.table:
            raise click.exceptions.NoSuchCommand(args[0], possibilities=self.table, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.table[name].about) for name in self.list_commands(ctx)])


def every_command(group: LazyGroup) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands below a group with the words that call them; a group comes before its own."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield tuple(name.split()), command
        if isinstance(command, LazyGroup):
            yield from (((name, *words), inner) for words, inner in every_command(command))
