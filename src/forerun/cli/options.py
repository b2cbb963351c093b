"""Options of all commands: the sources of their values, and their help.

A value comes from, in this order: the flag, the variable `FORERUN_<NAME>`, the file of `--config`,
the default. Flags have the names of the dataclass fields that they fill.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from forerun.errors import ConfigError
from forerun.files import CACHE_VARIABLE
from forerun.flags import flags_of
from forerun.foreign import LONG_WITH_ONE_DASH, advice, in_words, own_flag
from forerun.progress import say

if TYPE_CHECKING:
    from forerun.cli.main import Row

# Short flags; `-md` is llama.cpp's.
SHORT = {
    "draft_model": "-md",
    "max_tokens": "-n",
    "model": "-m",
    "prompt": "-p",
    "quiet": "-q",
}
# Key of a context in which the help shows all options.
ALL = "forerun.cli.options.all"
_TAKEN = "forerun.cli.options.taken"


class Option(click.Option):
    """An option with a heading for the help and a variable of its own.

    Args:
        name: as in Python, with underscores; flag and variable are made from it.
        section: its heading in the help.
        off: whether a flag has a `--no-` form.
    """

    def __init__(self, name: str, section: str, *, off: bool = False, **settings: Any) -> None:
        flag = name.replace("_", "-")
        settings.setdefault("show_default", True)
        flags = [f"--{flag}/--no-{flag}" if off else f"--{flag}"]
        super().__init__(
            [*([SHORT[name]] if name in SHORT else []), *flags, name],
            envvar=f"FORERUN_{name.upper()}",
            **settings,
        )
        self.section = section


class Note(NamedTuple):
    """Text of a section of the help beside its options."""

    text: str
    rows: Sequence[tuple[str, str]] = ()


class Command(click.Command):
    """A command with headings in its help that accepts flags of other tools.

    Args:
        row: its row of the table of commands.
        kind: class of its requests. It may name, as `common`, the options that --help shows, while
            --help-all shows all, and as `hidden` sections that the help leaves out.
    """

    def __init__(self, name: str, row: Row, kind: type, **settings: Any) -> None:
        super().__init__(name, **settings)
        self.example, self._assumed = row.example, row.assumed
        self.context_settings["token_normalize_func"] = self._own_flag
        self._common: Sequence[str] = getattr(kind, "common", ())
        self._hidden: Sequence[str] = getattr(kind, "hidden", ())
        if self._common:
            self.params.append(_help_all())

    @cached_property
    def _flags(self) -> set[str]:
        """All flags, without the dashes before them."""
        names = (name for param in self.params for name in (*param.opts, *param.secondary_opts))
        return {name.lstrip("-") for name in names}

    def _own_flag(self, name: str) -> str:
        """The flag's own name, from the name that was written."""
        if name in LONG_WITH_ONE_DASH:
            raise click.NoSuchOption(f"-{name}")
        ours = own_flag(name, self._flags)
        if ours != name.replace("_", "-"):
            click.get_current_context().meta.setdefault(_TAKEN, []).append((name, ours))
        return ours

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self._common and ALL not in ctx.meta:
            shown = {param.name: param for param in self.params}
            options = [*map(shown.get, (*self._common, "help_all")), self.get_help_option(ctx)]
            lines = (option.get_help_record(ctx) for option in options if option is not None)
            with formatter.section("Options"):
                formatter.write_dl(list(filter(None, lines)))
            return
        notes, rows = method_notes(), dict[str, list[tuple[str, str]]]()
        notes = {title: notes[title] for title in notes if title not in self._hidden}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx) if isinstance(option, click.Option) else None
            if record is None:
                continue
            section = getattr(option, "section", "Other")
            if section in notes:
                others = [title for title in notes if title not in rows]
                rows.update({title: list(notes[title].rows) for title in others})
            rows.setdefault(section, []).append(record)
        for section, records in rows.items():
            with formatter.section(section):
                if section in notes:
                    formatter.write_text(notes[section].text)
                if records:
                    formatter.write_dl(records)

    def invoke(self, ctx: click.Context) -> Any:
        known = {str(option.envvar) for option in self.params if option.envvar}
        for name in sorted(os.environ):
            if name.startswith("FORERUN_") and name not in (*known, CACHE_VARIABLE):
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
                if near:
                    say(f"warning: {name} is not used; did you mean {near[0]}?")
        if _TAKEN in ctx.meta:
            say(f"taken {in_words(ctx.meta[_TAKEN])}")
        if self._assumed and not any(given(ctx, str(param.name)) for param in self.params):
            assumed = self._assumed.format(**ctx.params)
            say(f"{assumed}; for more: {self.example}, or --help")
        return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if self._common and args[-2:] == ["--help", "all"]:
            args = ["--help-all"]
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            message = f"{error.format_message()} For example: {self.example}"
            raise click.UsageError(message, ctx=ctx) from None
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-")
            text = advice(name, self._flags) or _nearest(name, self._flags)
            message = f"No such option {error.option_name!r}.{text and ' '}{text}"
            raise click.UsageError(message, ctx=ctx) from None


def _nearest(name: str, flags: Iterable[str]) -> str:
    """A suggestion of the nearest flag; empty if no flag is near."""
    near = difflib.get_close_matches(name, sorted(flags), n=1)
    return f"Did you mean {'--' + near[0]!r}?" if near and len(near[0]) > 1 else ""


def _help_all() -> click.Option:
    """The option `--help-all`."""

    def show(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            ctx.meta[ALL] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    return click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="Show all options and exit.",
    )


def method_notes() -> dict[str, Note]:
    """Notes on all installed methods, by the title of their section."""
    from forerun.drafters import DRAFTERS

    notes = {}
    for name in DRAFTERS.names():
        try:
            drafter = DRAFTERS.find(name)
        except ConfigError as error:
            notes[f"Method {name}"] = Note(str(error))
            continue
        text = (drafter.__doc__ or "").partition("\n")[0]
        rows = [] if name in DRAFTERS else _rows(drafter.options)
        notes[f"Method {name}"] = Note(text, rows)
    return notes


def _rows(kind: type) -> list[tuple[str, str]]:
    """Options without flags of their own, as the help shows them."""
    from forerun.cli.requests import Value

    rows = []
    for flag in flags_of(kind):
        text = flag.schema.get("description", "")
        shown = "" if flag.default in (None, ()) else f"  [default: {flag.default}]"
        value = Value(flag).name.upper()
        rows.append((f"--method-option {flag.name}={value}", f"{text}{shown}"))
    return rows


def given(ctx: click.Context, name: str) -> bool:
    """True if an option has a value that is not its default."""
    return ctx.get_parameter_source(name) is not ParameterSource.DEFAULT
