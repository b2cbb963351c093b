"""Tables of methods by name, open to other packages through entry points."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from forerun.errors import ConfigError, UnknownNameError


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
