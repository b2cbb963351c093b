"""Stores of drafters between requests, separate for each namespace."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from forerun.drafters.lookup.automaton import SuffixAutomaton

T = TypeVar("T")

# Number of namespaces in a `SuffixStore`; the most recently used ones stay.
MOST_NAMESPACES = 64


class Namespaces(Generic[T]):
    """One object for each of the most recently used namespaces.

    Args:
        make: makes a new object.
        most: most namespaces.
    """

    def __init__(self, make: Callable[[], T], most: int) -> None:
        self._make, self._most = make, most
        self._kept: OrderedDict[str, T] = OrderedDict()

    def get(self, name: str) -> T | None:
        """The namespace's object, marked as used now, or None."""
        if name in self._kept:
            self._kept.move_to_end(name)
        return self._kept.get(name)

    def get_or_make(self, name: str) -> T:
        """The namespace's object, marked as used now; a new one replaces the least recently used."""
        if name not in self._kept:
            if len(self._kept) == self._most:
                self._kept.popitem(last=False)
            self._kept[name] = self._make()
        self._kept.move_to_end(name)
        return self._kept[name]


class SuffixStore:
    """Earlier outputs of each namespace, in two automata, because an automaton cannot forget.

    The newer automaton takes outputs up to half of the limit. Then it becomes the older one, and
    the older one before is dropped.

    Args:
        most_tokens: tokens stored for each namespace; 0 stores nothing.
    """

    def __init__(self, most_tokens: int) -> None:
        self._half = most_tokens // 2
        self._pairs: Namespaces[list[SuffixAutomaton]] = Namespaces(
            lambda: [SuffixAutomaton(), SuffixAutomaton()], MOST_NAMESPACES
        )

    def add(self, namespace: str, token_ids: Sequence[int]) -> None:
        """Store an output, or the end of one longer than half the limit, for its namespace."""
        if not self._half or not token_ids:
            return
        pair, newest = self._pairs.get_or_make(namespace), token_ids[-self._half :]
        if pair[0].num_tokens + len(newest) > self._half:
            pair[:] = SuffixAutomaton(), pair[0]
        pair[0].extend(newest)
        pair[0].end_text()

    def automata(self, namespace: str) -> tuple[SuffixAutomaton, ...]:
        """The automata of a namespace that hold outputs, the newer first."""
        pair = self._pairs.get(namespace) or ()
        return tuple(automaton for automaton in pair if automaton.num_tokens)
