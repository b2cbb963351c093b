"""Requests on the command line: click's parameters of a request, and their values, also from `--config`."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from forerun.cli.options import Option
from forerun.errors import ConfigError, UnknownNameError
from forerun.files import read_text
from forerun.flag_values import KILO, joined, read_value
from forerun.flags import FILE, FLAG, VARIABLE, Flag, Given, flags_of

_SOURCES = {
    ParameterSource.COMMANDLINE: FLAG,
    ParameterSource.ENVIRONMENT: VARIABLE,
    ParameterSource.DEFAULT_MAP: FILE,
}
# Options whose value may also be a file or a directory.
PATHS = ("model", "draft_model", "tree")
_NAMES = {"number": "float", "object": "name=value", "string": "text", "boolean": "boolean"}
# Of the positional form of an option.
_ARGUMENT = "{}_argument"


class Value(click.ParamType[Any]):
    """The type of an option, which reads values by the option's schema."""

    def __init__(self, flag: Flag) -> None:
        self.flag = flag
        self.name = "file" if flag.is_path else _NAMES.get(flag.kind, flag.kind)
        if flag.kind == "array" and not flag.is_path:
            entry = _NAMES.get(flag.inner["items"].get("type"), "text")
            self.name = entry if flag.use.repeat else flag.name.rpartition("_")[2]

    def split_envvar_value(self, rv: str) -> list[str]:
        return rv.split(os.pathsep) if self.flag.is_path else [rv]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return read_value(self.flag, value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        # bash offers files where no name fits, and forgets the names before them.
        path = self.flag.is_path or self.flag.name in PATHS
        files = [CompletionItem(incomplete, type="file")] if path else []
        offered = self.flag.use.names
        names = self.flag.inner.get("enum", ()) if offered is None else offered()
        return files + [CompletionItem(name) for name in names if name.startswith(incomplete)]


def params_of(kind: type) -> Iterator[click.Parameter]:
    """Parameters of a command that makes a request."""
    for flag in flags_of(kind):
        if flag.use.argument:
            name = flag.name.upper()
            yield click.Argument(
                [_ARGUMENT.format(flag.name)],
                type=Value(flag),
                nargs=-1,
                metavar=name if flag.required else f"[{name}]",
            )
        yield option_of(flag)


def option_of(flag: Flag) -> Option:
    text, default = flag.schema.get("description", ""), flag.default
    how: dict[str, Any] = {"type": Value(flag)}
    if flag.kind == "boolean":
        how = {"off": bool(default), "is_flag": True, "default": bool(default)}
    elif flag.repeated:
        several = flag.use.repeat or flag.kind == "object"
        text += " Repeatable." if several else ""
        # Nothing is shown of an empty list.
        shown = _listed(default) if default else None
        how |= {"multiple": several, "default": (shown,) if several and shown else shown}
        how |= {"callback": partial(_join, flag)}
    elif flag.required and not flag.use.argument:
        how |= {"required": True}
    else:
        how |= {"default": default, "show_default": flag.use.shown or True}
    return Option(flag.name, flag.use.section, help=text, **how)


def _join(flag: Flag, ctx: click.Context, param: click.Parameter, value: Sequence[Any]) -> Any:
    """The value of a repeated option."""
    if ctx.get_parameter_source(flag.name) is ParameterSource.DEFAULT:
        return flag.default
    try:
        return joined(flag, value if getattr(param, "multiple", False) else [value])
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _listed(values: Sequence[Any]) -> str:
    """A list as text for a flag; consecutive integers become a range."""
    if not all(isinstance(value, int) for value in values):
        return ",".join(f"{value:g}" if isinstance(value, float) else value for value in values)
    if len(values) > 2 and list(values) == list(range(values[0], values[-1] + 1)):
        return f"{values[0]}-{values[-1]}"
    return ",".join(str(n) if n % KILO or not n else f"{n // KILO}k" for n in values)


def read_given(ctx: click.Context, kind: type) -> Given:
    """The given options of a request, with their sources.

    Raises:
        UsageError: for an argument that is missing, or given as a flag too.
    """
    values, sources = dict[str, Any](), dict[str, int]()
    for flag in flags_of(kind):
        word, source = _argument(ctx, flag), ctx.get_parameter_source(flag.name)
        if word is not None:
            values[flag.name], sources[flag.name] = word, FLAG
        elif source in _SOURCES:
            values[flag.name], sources[flag.name] = ctx.params[flag.name], _SOURCES[source]
        elif flag.required and flag.use.argument:
            example = getattr(ctx.command, "example", "")
            text = f"Missing argument '{flag.name.upper()}'. For example: {example}"
            raise click.UsageError(text, ctx)
    return Given(values, sources, partial(_as_written, ctx))


def _argument(ctx: click.Context, flag: Flag) -> Any:
    """The value of an option in its positional form; None if it is not given so."""
    name, words = flag.name.upper(), ctx.params.get(_ARGUMENT.format(flag.name))
    if not words:
        return None
    if len(words) > 1:
        raise click.UsageError(f'{name} is several words; quote it: "{" ".join(words)}".', ctx)
    if ctx.get_parameter_source(flag.name) is ParameterSource.COMMANDLINE:
        text = f"the argument {name} and --{flag.name} exclude each other; leave one out."
        raise click.UsageError(text, ctx)
    return words[0]


def _as_written(ctx: click.Context, name: str) -> str:
    """An option as the user wrote it, such as `--no-speculative`, or its argument."""
    if ctx.params.get(_ARGUMENT.format(name)):
        return f"the argument {name.upper()}"
    option = next(param for param in ctx.command.params if param.name == name)
    negative = option.secondary_opts and ctx.params[name] is False
    return option.secondary_opts[0] if negative else max(option.opts, key=len)


MOST_BYTES = 2**20


def config_option() -> Option:
    """The option `--config`, whose file holds values for the other options."""
    return Option(
        "config",
        "Other",
        type=Value(Flag("config", (), {"type": "string", "minLength": 1, "format": "path"}, None)),
        is_eager=True,
        expose_value=False,
        callback=_use,
        help="TOML file with options, keys as the flags' names. Flags and variables beat it.",
    )


def _use(ctx: click.Context, _: click.Parameter, path: str | None) -> None:
    if path is not None:
        ctx.default_map = read_config(Path(path), ctx.command)


def read_config(path: Path, command: click.Command) -> dict[str, Any]:
    """The values in a file, by parameter name, as text for the options to parse.

    Raises:
        ConfigError: for a file that cannot be read or holds more than options.
        UnknownNameError: for a key that the command has no option for.
    """
    text = read_text(path, "config file", ConfigError, most_bytes=MOST_BYTES)
    try:
        content = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(f"config file {path} cannot be read: nested too deep.") from None
    except ValueError as error:
        raise ConfigError(f"config file {path} cannot be read: {error}.") from error
    options = {p.name: p for p in command.params if isinstance(p, Option) and p.expose_value}
    values = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name not in options:
            known = [str(name).replace("_", "-") for name in options]
            raise UnknownNameError(f"key in {path}", key, known)
        values[name] = as_text(value, options[name], f"{key} in {path}")
    return values


def as_text(value: Any, option: Option, where: str) -> str | list[str]:
    """A value as a flag's text, so that a file is read as strictly as the command line."""
    if isinstance(value, dict):
        raise ConfigError(f"{where} is a table; keys and values are flat here.")
    items = [str(item) for item in value] if isinstance(value, list) else [str(value)]
    if option.multiple:
        return items
    takes_list = isinstance(option.type, Value) and option.type.flag.kind == "array"
    if isinstance(value, list) and not takes_list:
        raise ConfigError(f"{where} is a list; give a single value.")
    return ",".join(items)
