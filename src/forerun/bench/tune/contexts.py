"""Shortest context at which drafts pay that read less of the cache than the target does.

The formula is that of `forerun simulate --draft-window`: a drafting round takes the time of its drafts and
of checking them, in plain rounds of the same context. What drafts take follows a candidate's own
`cost_share`; everything else is as it was measured on the traffic.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forerun.contracts import Drafter
from forerun.core import Request
from forerun.params import SamplingParams

# Contexts that shares are noted at; in between their reciprocals are linear.
_PER_OCTAVE = 16
# Shares that differ by less are one.
_ALIKE = 1e-6


@dataclass(frozen=True)
class Shares:
    """Cost of a drafted token by context, in plain rounds of the same context.

    Args:
        candidate: name of the drafter.
        contexts: tokens, rising from 1 to the model's context.
        shares: the cost at each of them.
    """

    candidate: str
    contexts: tuple[int, ...]
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.contexts or len(self.contexts) != len(self.shares):
            raise ValueError("shares has not one entry for each of one or more contexts")
        if sorted(set(self.contexts)) != list(self.contexts) or min(self.shares) <= 0:
            raise ValueError("contexts do not rise, or a share is not above zero")

    @property
    def longest(self) -> int:
        """The model's context."""
        return self.contexts[-1]

    def at(self, context: float) -> float:
        """The share at a context; beyond the ends that of the end."""
        # Bytes of a plain round rise linearly with the context: exact where a draft reads a window.
        return float(1.0 / np.interp(context, self.contexts, 1.0 / np.asarray(self.shares)))

    def first_below(self, share: float) -> int | None:
        """The least context at which the share is below a number; None if there is none."""
        index = next((i for i, known in enumerate(self.shares) if known < share), None)
        if index is None:
            return None
        if index == 0:
            return self.contexts[0]
        # Between two contexts that were noted the share only falls.
        between = range(self.contexts[index - 1], self.contexts[index] + 1)
        return between[bisect_left(between, True, key=lambda context: self.at(context) < share)]

    def reads_all(self, context: float) -> bool:
        """True if drafts at a context leave out nothing: their window is not full."""
        return self.at(context) >= max(self.shares) - _ALIKE


@dataclass(frozen=True)
class BreakEven:
    """Shortest context at which a setting is faster than plain decoding.

    Args:
        context: tokens; None if the setting is slower at all contexts.
        model_context: the longest context that was looked at.
        traffic_context: mean context of the traffic that acceptance was measured on.
        untested: drafts left out nothing of the cache there, so that acceptance at longer contexts may be
            lower.
    """

    context: int | None
    model_context: int
    traffic_context: float
    untested: bool


def shares_of(drafter: Drafter, candidate: str, longest: int) -> Shares | None:
    """Shares that a drafter declares; None where the context does not matter, or only measurements tell.

    Args:
        longest: the model's context.
    """
    contexts = _contexts(longest)
    shares = []
    for context in contexts:
        share = drafter.cost_share(Request(0, [0] * context, context, SamplingParams(), seed=0))
        if share is None or share <= 0:
            return None
        shares.append(share)
    if max(shares) - min(shares) <= _ALIKE:
        return None
    return Shares(candidate, contexts, tuple(shares))


def break_even(
    shares: Shares, drafting: float, rest: float, contexts: Sequence[float]
) -> BreakEven:
    """Shortest context at which rounds take less time than plain decoding of what they emit.

    Args:
        drafting, rest: measured time of drafts, and of all else in rounds, over that of plain decoding of
            the same tokens: less where more is accepted.
        contexts: context of each output that they were measured on.
    """
    context = sum(contexts) / len(contexts)
    # Plain decoding takes 1, so drafts may take 1 - rest; what they take is in proportion to the share.
    may_be = shares.at(context) * (1.0 - rest) / drafting
    untested = shares.reads_all(max(contexts))
    return BreakEven(shares.first_below(may_be), shares.longest, context, untested)


def _contexts(longest: int) -> tuple[int, ...]:
    """Contexts from 1 to `longest`, equally many in each doubling."""
    count = 1 + int(np.ceil(np.log2(longest) * _PER_OCTAVE))
    return tuple(int(value) for value in np.unique(np.geomspace(1, longest, count).round()))
