"""Tables of methods by name, open to other packages through entry points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from forerun.errors import ConfigError, UnknownNameError, shown


@cache
def entry_points_of(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, as installed at the first call.

    They are cached because reading the metadata of all packages takes longer than the rest of a
    configuration.
    """
    return tuple(entry_points(group=group))


class Registry(dict[str, Any]):
    """The methods of one kind by name: a mapping of our own; `find` also knows those of other packages.

    Args:
        kind: what the methods are, for messages.
        group: group of the entry points by which other packages register theirs.
        own: our own methods by name; they come first.
        with_options: each class must declare its `options` with `forerun.options.options`.
    """

    def __init__(
        self, kind: str, group: str, own: Mapping[str, Any], *, with_options: bool = False
    ) -> None:
        super().__init__(own)
        self.kind, self.group, self.with_options = kind, group, with_options

    def names(self) -> list[str]:
        """Our own names and those that other packages register."""
        return sorted({*self, *(point.name for point in entry_points_of(self.group))})

    def find(self, name: str) -> Any:
        """The method called `name`.

        Raises:
            UnknownNameError: listing what exists.
            ConfigError: if a registered entry cannot be imported, or lacks its options.
        """
        entry = self[name] if name in self else self._load(name)
        options = getattr(entry, "options", None)
        if self.with_options and not is_dataclass(options):
            raise ConfigError(
                f"{self.kind} {name!r} has options {shown(options)}; declare them by "
                "forerun.options.options, or use NoOptions."
            )
        return entry

    def _load(self, name: str) -> Any:
        for point in entry_points_of(self.group):
            if point.name != name:
                continue
            try:
                return point.load()
            except (ImportError, AttributeError) as error:
                raise ConfigError(
                    f"{self.kind} {name!r} is registered as {point.value} but cannot be loaded: {error}."
                ) from error
        raise UnknownNameError(self.kind, name, self.names())
