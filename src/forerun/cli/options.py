"""What the options of all commands have in common: where their values come from, and their help.

A value comes from, in this order: the flag, the variable `FORERUN_<NAME>`, the file of `--config`,
the default. Flags have the names of the dataclass fields that they fill.
"""

from __future__ import annotations

import difflib
import os
from itertools import groupby
from typing import Any

import click
from click.core import ParameterSource

from forerun.errors import ConfigError

# What other tools, or another of our commands, call an option of ours: the first that a command has.
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
        name: as in Python, with underscores; the flag and the variable are made of it.
        section: the heading that it stands under.
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


class Command(click.Command):
    """A command whose help has headings and whose errors know other tools' options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        for section, members in groupby(options, lambda o: getattr(o, "section", "Other")):
            with formatter.section(section):
                records = [option.get_help_record(ctx) for option in members]
                formatter.write_dl([record for record in records if record is not None])

    def invoke(self, ctx: click.Context) -> Any:
        known = {str(option.envvar) for option in self.params if option.envvar}
        for name in sorted(os.environ):
            if name.startswith("FORERUN_") and name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
                if near:
                    click.echo(
                        f"forerun: warning: nobody reads {name}; did you mean {near[0]}?", err=True
                    )
        return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-").replace("_", "-")
            known = {option.name for option in self.params}
            candidates = FOREIGN.get(name, ())
            ours = next((one for one in candidates if one.replace("-", "_") in known), None)
            if ours is None:
                raise
            raise click.UsageError(
                f"No such option {error.option_name!r}. It is called '--{ours}' here.", ctx=ctx
            ) from None


class Whole(click.ParamType[str]):
    """Text that is never split, also not where it comes from a variable."""

    name = "text"

    def split_envvar_value(self, rv: str) -> list[str]:
        return [rv]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            # Bytes of an argument that are no UTF-8 come as surrogates.
            self.fail(f"it is not UTF-8 text (character {error.start}).", param, ctx)
        return text


class Name(Whole):
    """Text that is not empty: what names a model, a method or a place."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not str(value):
            self.fail("it is empty; give a value or leave the option out.", param, ctx)
        return super().convert(value, param, ctx)


class FileName(click.ParamType[str]):
    """A file's name, which need not be UTF-8, but not be empty."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value:
            self.fail("it is empty; name a file or leave the option out.", param, ctx)
        return str(value)


class Names(click.ParamType[tuple[str, ...]]):
    """Names with commas between them."""

    name = "names"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        names = value if isinstance(value, (tuple, list)) else str(value).split(",")
        if not all(isinstance(name, str) and name.strip() for name in names):
            self.fail(f"{value!r} is no list of names such as suffix,draft_model:4.", param, ctx)
        return tuple(name.strip() for name in names)


class TokenIds(click.ParamType[tuple[int, ...]]):
    """Token ids with commas between them."""

    name = "ids"
    what = "token ids such as 11,42"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of {self.what}.", param, ctx)


class LayerNumbers(TokenIds):
    """Numbers of layers with commas between them."""

    name = "layers"
    what = "layers such as 3,4,6"


class TokenBias(click.ParamType[tuple[int, float]]):
    """`ID=VALUE`."""

    name = "id=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, float]:
        if isinstance(value, tuple):
            return value
        token, _, bias = value.partition("=")
        try:
            return int(token), float(bias)
        except ValueError:
            self.fail(f"{value!r} is no bias such as 42=-1.5.", param, ctx)


def given(ctx: click.Context, name: str) -> bool:
    """Whether an option has a value that is not its default."""
    return ctx.get_parameter_source(name) is not ParameterSource.DEFAULT


def stronger(ctx: click.Context, one: str, other: str) -> str:
    """Of two options that exclude each other and are both given, the name of the one that counts:
    a flag before a variable before the file.

    Raises:
        ConfigError: when they come from the same place.
    """
    first, second = ctx.get_parameter_source(one), ctx.get_parameter_source(other)
    assert first is not None
    assert second is not None
    if first is second:
        raise ConfigError(
            f"{flag_of(ctx, one)} and {flag_of(ctx, other)} exclude each other; leave one out."
        )
    return one if first < second else other


def flag_of(ctx: click.Context, name: str) -> str:
    """An option as the user would write it, with its value in mind: `--no-speculative`."""
    option = next(param for param in ctx.command.params if param.name == name)
    negative = option.secondary_opts and ctx.params[name] is False
    return option.secondary_opts[0] if negative else option.opts[0]
