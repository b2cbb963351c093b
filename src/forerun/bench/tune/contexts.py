"""Shortest context at which drafts pay that read less of the cache than the target does.

The formula is that of `forerun simulate --draft-window`: a drafting round takes the time of its drafts and
of checking them, in plain rounds of the same context. What drafts take follows a candidate's own
`cost_share`; everything else is as it was measured on the traffic.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from forerun.contracts import Drafter
from forerun.core import Request
from forerun.params import SamplingParams

# Shares that differ by less are one.
_ALIKE = 1e-6


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


class Shares:
    """Cost of a drafted token in plain rounds of the same context, which falls with the context.

    Args:
        drafter: that declares it.
        longest: the model's context.
    """

    def __init__(self, drafter: Drafter, longest: int) -> None:
        self.longest = longest
        self.share_at = cache(lambda context: _share(drafter, context))

    @classmethod
    def of(cls, drafter: Drafter, longest: int) -> Shares | None:
        """Shares of a drafter; None where the context does not matter, or only measurements tell."""
        shares = cls(drafter, longest)
        ends = shares.share_at(1), shares.share_at(longest)
        known = [share for share in ends if share is not None and share > 0]
        return shares if len(known) == 2 and known[0] - known[1] > _ALIKE else None

    def break_even(self, drafting: float, rest: float, contexts: Sequence[float]) -> BreakEven:
        """Shortest context at which rounds take less time than plain decoding of what they emit.

        Args:
            drafting, rest: measured time of drafts, and of all else in rounds, over that of plain decoding
                of the same tokens: less where more is accepted.
            contexts: context of each output that they were measured on.
        """
        mean = sum(contexts) / len(contexts)
        # Plain decoding takes 1, so drafts may take 1 - rest; what they take is in proportion to the share.
        bound = self._at(mean) * (1.0 - rest) / drafting
        untested = self._at(max(contexts)) >= self._at(1) - _ALIKE
        return BreakEven(self.first_below(bound), self.longest, mean, untested)

    def first_below(self, bound: float) -> int | None:
        """The least context at which the share is below a number; None if there is none."""
        every = range(1, self.longest + 1)
        index = bisect_left(every, True, key=lambda context: self._at(context) < bound)
        return every[index] if index < len(every) else None

    def _at(self, context: float) -> float:
        share = self.share_at(min(round(context), self.longest))
        assert share is not None
        return share


def _share(drafter: Drafter, context: int) -> float | None:
    return drafter.cost_share(Request(0, [0] * context, context, SamplingParams(), seed=0))
