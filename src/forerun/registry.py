"""Tables of methods by name, open to other packages through entry points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from importlib.metadata import entry_points
from typing import Any

from forerun.errors import ConfigError, UnknownNameError, shown


def names(table: Mapping[str, Any], group: str) -> list[str]:
    """The names in `table` and those that other packages register under `group`."""
    return sorted({*table, *(point.name for point in entry_points(group=group))})


def find(kind: str, name: str, table: Mapping[str, Any], group: str) -> Any:
    """What `name` stands for; our own table comes first.

    Raises:
        UnknownNameError: listing what exists.
        ConfigError: where a registered entry cannot be imported.
    """
    if name in table:
        return table[name]
    for point in entry_points(group=group, name=name):
        try:
            return point.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"{kind} {name!r} is registered as {point.value} but cannot be loaded: {error}."
            ) from error
    raise UnknownNameError(kind, name, names(table, group))


def find_with_options(kind: str, name: str, table: Mapping[str, Any], group: str) -> Any:
    """A class that declares its `options`, by `forerun.options.options`.

    Raises:
        UnknownNameError, ConfigError: as `find`, and for a class that declares none.
    """
    found = find(kind, name, table, group)
    options = getattr(found, "options", None)
    if not is_dataclass(options):
        raise ConfigError(
            f"{kind} {name!r} has options {shown(options)}; declare them by forerun.options.options, "
            "or use NoOptions."
        )
    return found
