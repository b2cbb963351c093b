"""`--config FILE`: a TOML file with the flags' names as keys."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import click

from forerun.cli.options import FileName, Names, Option, TokenIds
from forerun.errors import ConfigError, UnknownNameError


def config_option() -> Option:
    """The option; its file becomes what the other options fall back on."""
    return Option(
        "config",
        "Other",
        type=FileName(),
        metavar="FILE",
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
        ConfigError: when it cannot be read or holds something else than options.
        UnknownNameError: for a key that is no option of the command.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {path}.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"config file {path} cannot be read: {error}.") from error
    options = {p.name: p for p in command.params if p.expose_value and p.name is not None}
    values = {}
    for key, value in content.items():
        option = options.get(key.replace("-", "_"))
        if option is None:
            known = [name.replace("_", "-") for name in options]
            raise UnknownNameError(f"key in {path}", key, known)
        assert option.name is not None
        values[option.name] = _as_text(value, option, f"{key} in {path}")
    return values


def _as_text(value: Any, option: click.Parameter, where: str) -> str | list[str]:
    """As a flag would have it, so that the file is not parsed more loosely than the command line."""
    several = isinstance(option, click.Option) and option.multiple
    if isinstance(value, dict):
        raise ConfigError(f"{where} is a table; keys and values are flat here.")
    items = [str(item) for item in value] if isinstance(value, list) else [str(value)]
    if several:
        return items
    if isinstance(value, list) and not isinstance(option.type, (Names, TokenIds)):
        raise ConfigError(f"{where} is a list; give one value.")
    return ",".join(items)
