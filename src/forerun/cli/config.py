"""`--config FILE`: a TOML file with the flags' names as keys."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import click

from forerun.cli.options import Option
from forerun.cli.requests import Value
from forerun.errors import ConfigError, UnknownNameError
from forerun.files import read_text
from forerun.flags import Flag

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
    flags = (option for option in command.params if isinstance(option, click.Option))
    options = {p.name: p for p in flags if p.expose_value and p.name is not None}
    values = {}
    for key, value in content.items():
        option = options.get(key.replace("-", "_"))
        if option is None:
            known = [name.replace("_", "-") for name in options]
            raise UnknownNameError(f"key in {path}", key, known)
        assert option.name is not None
        values[option.name] = as_text(value, option, f"{key} in {path}")
    return values


def _takes_list(kind: click.ParamType[Any]) -> bool:
    return isinstance(kind, Value) and kind.flag.kind == "array"


def as_text(value: Any, option: click.Parameter, where: str) -> str | list[str]:
    """A value as a flag's text, so that a file is read as strictly as the command line."""
    repeatable = isinstance(option, click.Option) and option.multiple
    if isinstance(value, dict):
        raise ConfigError(f"{where} is a table; keys and values are flat here.")
    items = [str(item) for item in value] if isinstance(value, list) else [str(value)]
    if repeatable:
        return items
    if isinstance(value, list) and not _takes_list(option.type):
        raise ConfigError(f"{where} is a list; give a single value.")
    return ",".join(items)
