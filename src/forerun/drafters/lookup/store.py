"""What drafters keep between requests, apart for each namespace."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from forerun.drafters.lookup.automaton import SuffixAutomaton

T = TypeVar("T")

# Namespaces that a `SuffixStore` keeps, those used last.
MOST_NAMESPACES = 64


class Namespaces(Generic[T]):
    """One thing for each namespace, for the namespaces that were used last.

    Args:
        make: a new one.
        most: how many are kept.
    """

    def __init__(self, make: Callable[[], T], most: int) -> None:
        self._make, self._most = make, most
        self._kept: OrderedDict[str, T] = OrderedDict()

    def get(self, name: str) -> T | None:
        """The namespace's own, marked as used now, or None."""
        if name in self._kept:
            self._kept.move_to_end(name)
        return self._kept.get(name)

    def get_or_make(self, name: str) -> T:
        """The namespace's own, marked as used now; a new one replaces the least recently used."""
        if name not in self._kept:
            if len(self._kept) == self._most:
                self._kept.popitem(last=False)
            self._kept[name] = self._make()
        self._kept.move_to_end(name)
        return self._kept[name]


class SuffixStore:
    """Earlier outputs of each namespace, in two automata: the newer takes outputs up to half of what is
    kept, then it becomes the older, and the one before is dropped, as an automaton cannot forget.

    Args:
        most_tokens: kept for each namespace; 0 keeps nothing.
    """

    def __init__(self, most_tokens: int) -> None:
        self._half = most_tokens // 2
        self._pairs: Namespaces[list[SuffixAutomaton]] = Namespaces(
            lambda: [SuffixAutomaton(), SuffixAutomaton()], MOST_NAMESPACES
        )

    def add(self, namespace: str, token_ids: Sequence[int]) -> None:
        """Keep an output for later requests of its namespace; of one longer than half, its end."""
        if not self._half or not token_ids:
            return
        pair, kept = self._pairs.get_or_make(namespace), token_ids[-self._half :]
        if pair[0].num_tokens + len(kept) > self._half:
            pair[:] = SuffixAutomaton(), pair[0]
        pair[0].extend(kept)
        pair[0].end_text()

    def automata(self, namespace: str) -> tuple[SuffixAutomaton, ...]:
        """The automata of a namespace that hold outputs, the newer first."""
        pair = self._pairs.get(namespace) or ()
        return tuple(automaton for automaton in pair if automaton.num_tokens)
