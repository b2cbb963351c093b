"""What drafters keep between requests, apart for each namespace."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Namespaces(Generic[T]):
    """One thing for each namespace, for the namespaces that were used last.

    Args:
        make: a new one.
        most: how many are kept.
    """

    def __init__(self, make: Callable[[], T], most: int) -> None:
        self._make, self._most = make, most
        self._kept: OrderedDict[str, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, name: str) -> T | None:
        """The one of a namespace, used now, or None."""
        if name in self._kept:
            self._kept.move_to_end(name)
        return self._kept.get(name)

    def get_or_make(self, name: str) -> T:
        """The one of a namespace, used now; the one that lay idle longest gives way to a new one."""
        found = self.get(name)
        if found is None:
            if len(self._kept) == self._most:
                self._kept.popitem(last=False)
            found = self._kept[name] = self._make()
        return found
