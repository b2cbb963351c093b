"""Hidden states of the target that a head's own cache still lacks, by row.

The target's states come with prompts and rounds, whether or not anything is drafted. They are
stored and run through the head only when it drafts next, so that a request that never speculates
never pays for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from forerun.core import ForwardOutput, Request, Verdict
from forerun.models.running import common_prefix

# Number of unneeded states up to which a needed one is not copied to free their memory.
_FEW = 64
# Rows that lack more tokens than this run them separately, so that no other row pays for padding.
LARGEST_SHARED_CATCH_UP = 16
_CHUNK = 512


class Trims(Protocol):
    """A cache of a head, in which slot i of a row belongs to the row's i-th observed token."""

    def length(self, row: int) -> int:
        """Number of slots of a row."""

    def trim(self, row: int, length: int) -> None:
        """Forget the slots of a row after the first `length`."""


@dataclass
class _StoredStates:
    """The stored states of one row.

    Attributes:
        token_ids: the text that its states belong to.
        base: position of slot 0 of the head's cache.
        held: slots that come from the target's states; the cache may have drafted ones after them.
        first: position of the first stored state.
        end: position after the last token whose state has been seen.
        states: states of consecutive tokens, each [m, W].
        request: request that the text belongs to, as far as it goes; None if it is unknown.
    """

    token_ids: list[int] = field(default_factory=list)
    base: int = 0
    held: int = 0
    first: int = 0
    end: int = 0
    states: list[Tensor] = field(default_factory=list)
    request: Request | None = None

    def joined(self) -> Tensor:
        """The states as one tensor, [m, W]."""
        if len(self.states) > 1:
            self.states = [torch.cat(self.states)]
        return self.states[0]

    def since(self, position: int) -> Tensor:
        """The states from a position on, [m, W]; mostly those that came last."""
        newest = self.states[-1]
        begin = self.end - len(newest)
        if position >= begin:
            return newest[position - begin :]
        return self.joined()[position - self.first :]

    def forget(self, count: int) -> None:
        """Forget the first `count` states."""
        self.first += count
        while count >= len(self.states[0]):
            count -= len(self.states.pop(0))
        if count:
            # A copy, if that frees much memory.
            rest = self.states[0][count:]
            self.states[0] = rest.clone() if count > _FEW else rest


@dataclass(frozen=True, slots=True)
class Missing:
    """States that the head must run before it can draft.

    Args:
        start: their first slot in the row of the head's cache, equal to its length.
        states: [m, W], m >= 1; the last belongs to the newest token that the target has run.
    """

    start: int
    states: Tensor


class Features:
    """Hidden states of the target by row, from the end of the head's cache on.

    A token's state depends on its whole path, so a row's states belong to its text. If a later
    request has another text, they are cut to the common prefix, and the head's cache with them. The
    slot before the first difference stays, although a head that reads the next token's embedding
    beside a state would now compute another one: the state itself is no longer stored, and drafts
    need not be exact.

    If states are missing because the target ran without being observed, the row starts again with
    the states that come next; slot 0 of the cache is then a later token. Rotary positions are
    relative, so the head sees the rest of the text as a separate text.

    Args:
        layers: the target's hidden layers; their states are joined in this order, with W columns
            together.
        rows: number of rows of the target's cache.
        cache: the head's cache; None for a head without one, for which the newest state is stored.
    """

    def __init__(self, layers: Sequence[int], rows: int, cache: Trims | None = None) -> None:
        self._layers, self._cache = tuple(layers), cache
        self._rows = [_StoredStates() for _ in range(rows)]

    def observe_prefill(self, request: Request, start: int, output: ForwardOutput) -> None:
        """Store the states of the tokens of a prompt from `start` on."""
        self._append(request, start, output.side_by_side(self._layers)[0])

    def observe(
        self, requests: Sequence[Request], verdicts: Sequence[Verdict], output: ForwardOutput
    ) -> None:
        """Store the states of a round's accepted tokens; the requests already hold the emitted tokens."""
        states = output.side_by_side(self._layers)
        for index, (request, verdict) in enumerate(zip(requests, verdicts, strict=True)):
            if not verdict.token_ids:
                continue
            path = verdict.path
            count = len(path) + 1
            if not path or path[-1] == count - 2:
                own = states[index, :count]
                if states.shape[:2] != (1, count):
                    # A view would keep the states of all requests of the round.
                    own = own.clone()
            else:
                own = states[index, [0, *(node + 1 for node in path)]]
            start = len(request) - len(verdict.token_ids) - 1
            self._append(request, start, own)

    def missing(self, request: Request) -> Missing | None:
        """The states of a request that the head's cache lacks; the cache is cut to the request's text.

        None if the newest states are unknown, so that nothing can be drafted.
        """
        row = self._cut(request)
        newest = len(request) - 1
        if row.end != newest or not row.states:
            return None
        # Drafts begin with the output for the newest state, so that state is always run.
        start = min(row.base + row.held, newest - 1)
        if start < row.first:
            return None
        row.held = start - row.base
        if self._cache is not None:
            self._cache.trim(request.row, row.held)
        return Missing(row.held, row.since(start))

    def pending(self, request: Request) -> int:
        """Approximate number of a request's states that the head has not run."""
        row = self._rows[request.row]
        return max(row.end - row.base - row.held, 0) if self._cache is not None else 0

    def run_most(
        self, request: Request, missing: Missing, run: Callable[[Tensor, int], object]
    ) -> Tensor:
        """Run most of the states that a row lacks if there are many; return the rest, one at least.

        Args:
            request: the request.
            missing: result of `missing`.
            run: runs states of the row [m, W] in the head, given the position of the first.
        """
        states = missing.states
        while len(states) > LARGEST_SHARED_CATCH_UP:
            count = min(_CHUNK, len(states) - 1)
            run(states[:count], len(request) - 1 - len(states))
            self.ran(request, count)
            states = states[count:]
        return states

    def ran(self, request: Request, count: int) -> None:
        """Note that the first `count` states returned by `missing` are now in the head's cache."""
        row = self._rows[request.row]
        row.held += count
        # The last state stays, for a second draft after the same text.
        done = min(row.base + row.held, row.end) - 1 - row.first
        if done > 0:
            row.forget(done)

    def clear(self, row: int) -> None:
        """Forget everything about a row."""
        self._rows[row] = _StoredStates()
        if self._cache is not None:
            self._cache.trim(row, 0)

    def _append(self, request: Request, start: int, states: Tensor) -> None:
        row = self._cut(request, start)
        if not request.speculative:
            return
        if start != row.end:
            self._restart(request.row, start)
            row = self._rows[request.row]
        row.states.append(states)
        row.end, row.request = start + len(states), request
        if self._cache is None:
            row.states, row.first = [states[-1:].clone()], row.end - 1
            row.base, row.held = row.first, 0
        row.token_ids += request.token_ids[len(row.token_ids) : row.end]

    def _cut(self, request: Request, most: int | None = None) -> _StoredStates:
        """The row of a request, cut to the common prefix with the request's first `most` tokens."""
        row = self._rows[request.row]
        if row.request is request and (most is None or most >= row.end):
            # The text of a request only grows.
            return row
        shared = common_prefix(row.token_ids, request.token_ids[:most])
        if shared == len(row.token_ids):
            return row
        row.token_ids = row.token_ids[:shared]
        count = max(shared - row.first, 0)
        row.states = [row.joined()[:count]] if count and row.states else []
        row.held = max(min(row.held, shared - row.base), 0)
        row.end, row.request = shared, None
        if not row.states:
            # The next state to come follows the slots that are left.
            row.first = row.end = row.base + row.held
        return row

    def _restart(self, row: int, start: int) -> None:
        """Start a row again with the token at position `start`."""
        self._rows[row] = _StoredStates(base=start, first=start, end=start)
        if self._cache is not None:
            self._cache.trim(row, 0)
