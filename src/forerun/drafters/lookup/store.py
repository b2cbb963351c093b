"""Earlier outputs to draft from: a bounded store, apart for each namespace."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.drafters.lookup.automaton import SuffixAutomaton
from forerun.drafters.lookup.namespaces import Namespaces

# Namespaces that a store keeps, those used last.
MOST_NAMESPACES = 64


class Generations:
    """Automata of the latest texts: a young one that takes them, and an old one before it.

    An automaton cannot forget, so the old one is dropped whole when the young one has its half.

    Args:
        most_tokens: of both together.
    """

    def __init__(self, most_tokens: int) -> None:
        self._half = most_tokens // 2
        self.young, self.old = SuffixAutomaton(), SuffixAutomaton()

    @property
    def num_tokens(self) -> int:
        return self.young.num_tokens + self.old.num_tokens

    def add(self, token_ids: Sequence[int]) -> None:
        """Take a text; of one that fills more than a generation, its end."""
        kept = token_ids[max(len(token_ids) - self._half, 0) :]
        if self.young.num_tokens + len(kept) > self._half:
            self.young, self.old = SuffixAutomaton(), self.young
        self.young.extend(kept)
        self.young.end_text()


class SuffixStore:
    """What the requests of each namespace have come to. No namespace sees another's.

    Args:
        most_tokens: kept for each namespace; 0 keeps nothing.
        most_namespaces: those used last.
    """

    def __init__(self, most_tokens: int, most_namespaces: int = MOST_NAMESPACES) -> None:
        self._most_tokens = most_tokens
        self._namespaces = Namespaces(lambda: Generations(most_tokens), most_namespaces)

    def add(self, namespace: str, token_ids: Sequence[int]) -> None:
        """Keep an output for later requests of its namespace."""
        if self._most_tokens > 1 and token_ids:
            self._namespaces.get_or_make(namespace).add(token_ids)

    def automata(self, namespace: str) -> tuple[SuffixAutomaton, ...]:
        """Those to look into, the newer first; none where the namespace has no outputs."""
        kept = self._namespaces.get(namespace)
        if kept is None:
            return ()
        return tuple(one for one in (kept.young, kept.old) if one.num_tokens)

    def num_tokens(self, namespace: str) -> int:
        """Tokens kept for a namespace."""
        kept = self._namespaces.get(namespace)
        return 0 if kept is None else kept.num_tokens
