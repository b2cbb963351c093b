"""What the options of all commands have in common: where their values come from, and their help.

A value comes from, in this order: the flag, the variable `FORERUN_<NAME>`, the file of `--config`,
the default. Flags have the names of the dataclass fields that they fill.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from forerun.errors import ConfigError

# Names of our options in other tools, or in another of our commands; the first that a command has counts.
FOREIGN: dict[str, tuple[str, ...]] = {
    "alpha": ("acceptance",),
    "assistant-model": ("draft-model", "draft"),
    "batch-size": ("batch",),
    "cost": ("cost-ratio",),
    "ctx-size": ("max-context", "context"),
    "do-sample": ("temperature",),
    "draft-max": ("num-speculative-tokens", "lengths"),
    "draft-model": ("draft",),
    "file": ("prompt-file",),
    "gamma": ("num-speculative-tokens", "lengths"),
    "max-context": ("context",),
    "max-model-len": ("max-context", "context"),
    "max-new-tokens": ("max-tokens", "num-tokens"),
    "model-draft": ("draft-model", "draft"),
    "n-predict": ("max-tokens", "num-tokens"),
    "num-assistant-tokens": ("num-speculative-tokens", "lengths"),
    "num-speculative-tokens": ("lengths",),
    "num-threads": ("threads",),
    "precision": ("dtype",),
    "repeat-penalty": ("repetition-penalty",),
    "spec-draft-model": ("draft-model", "draft"),
    "speculative-draft-model-path": ("draft-model", "draft"),
    "speculative-model": ("draft-model", "draft"),
    "speculative-num-steps": ("num-speculative-tokens", "lengths"),
    "temp": ("temperature",),
    "torch-dtype": ("dtype",),
}


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
        if isinstance(settings.get("type"), click.IntRange):
            settings.setdefault("metavar", "INTEGER")
        super().__init__(
            [f"--{flag}/--no-{flag}" if off else f"--{flag}", name],
            envvar=f"FORERUN_{name.upper()}",
            **settings,
        )
        self.section = section


class Note(NamedTuple):
    """What the help says in a section beside its options."""

    text: str
    rows: Sequence[tuple[str, str]] = ()


class Command(click.Command):
    """A command whose help has headings and whose errors know other tools' options.

    Args:
        notes: further help by section. Sections without options follow the first that has some.
            Called only for the help.
    """

    def __init__(
        self, *args: Any, notes: Callable[[], Mapping[str, Note]] = dict, **settings: Any
    ) -> None:
        super().__init__(*args, **settings)
        self._notes = notes

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        notes, rows = self._notes(), dict[str, list[tuple[str, str]]]()
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
            if name.startswith("FORERUN_") and name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
                if near:
                    click.echo(
                        f"forerun: warning: {name} is not used; did you mean {near[0]}?", err=True
                    )
        return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-").replace("_", "-")
            known = {option.name for option in self.params}
            candidates = FOREIGN.get(name, ())
            ours = next((flag for flag in candidates if flag.replace("-", "_") in known), None)
            if ours is None:
                raise
            raise click.UsageError(
                f"No such option {error.option_name!r}. It is called '--{ours}' here.", ctx=ctx
            ) from None


def given(ctx: click.Context, name: str) -> bool:
    """Whether an option has a value that is not its default."""
    return ctx.get_parameter_source(name) is not ParameterSource.DEFAULT


def stronger(ctx: click.Context, name: str, other: str) -> str:
    """The name that counts of two options that exclude each other and are both given: a flag beats a
    variable, and a variable the file.

    Raises:
        ConfigError: when they come from the same source.
    """
    first, second = ctx.get_parameter_source(name), ctx.get_parameter_source(other)
    assert first is not None
    assert second is not None
    if first is second:
        raise ConfigError(
            f"{flag_of(ctx, name)} and {flag_of(ctx, other)} exclude each other; leave out either."
        )
    return name if first < second else other


def flag_of(ctx: click.Context, name: str) -> str:
    """An option as the user wrote it, such as `--no-speculative`."""
    option = next(param for param in ctx.command.params if param.name == name)
    negative = option.secondary_opts and ctx.params[name] is False
    return option.secondary_opts[0] if negative else option.opts[0]
