"""The budget of time that drafts may lose: paid for learning, a share of all time, and earlier gains."""

from __future__ import annotations

import math
from typing import Any

# Share of a plain round beyond which planning time is taken for an interruption.
MOST_PLANNING = 0.2
# Most gains that are reserved for later texts, and that a file may restore, in plain rounds.
MOST_RESERVE, RESTORED_RESERVE = 50.0, 10.0


class Account:
    """Time that may still be lost, in plain rounds.

    Args:
        share: share of all time that is credited.
        first: credit at the start.
        least, most: bounds of the credit. Losses below `least` are forgiven: drafts are only tried
            if they can be paid for, so those losses were mostly noise. Gains above `most` go to a
            reserve.
    """

    def __init__(self, share: float, first: float, least: float = -1.0, most: float = 10.0) -> None:
        self._share, self._least, self._most = share, least, most
        self.credit, self._reserve, self._advanced = first, 0.0, 0.0

    @property
    def learned(self) -> list[float]:
        """Credit and reserve, ready for JSON."""
        return [self.credit, self._reserve]

    def restore(self, learned: Any) -> None:
        """Start from the values that `learned` returned, within bounds.

        The credit is at most that of a new account, and the reserve is small, whatever a file says.
        """
        credit, reserve = map(float, learned)
        if not (math.isfinite(credit) and math.isfinite(reserve)):
            raise ValueError("an account")
        self.credit = min(credit, self.credit)
        self._reserve = min(max(reserve, 0.0), RESTORED_RESERVE)

    def charge(self, loss: float) -> None:
        """Subtract a loss outside of rounds."""
        self.credit = max(self.credit - loss, self._least)

    def draw(self, loss: float) -> None:
        """Raise the credit to `loss`, as far as the reserve allows."""
        drawn = min(max(loss - self.credit, 0.0), self._reserve)
        self.credit += drawn
        self._reserve -= drawn

    def advance(self, seconds: float) -> None:
        """Credit the share of `seconds` of time to come in advance.

        Drafts are best tried early in a text, before a drafter has much of it to catch up with.
        """
        more = max(min(self._share * seconds - self._advanced, self._most - self.credit), 0.0)
        self._advanced += more
        self.credit += more

    def settle(self, tokens: float, elapsed: float, planning: float) -> None:
        """Take in some rounds.

        Args:
            tokens: tokens that they emitted, on average over their requests.
            elapsed: their time, in plain rounds.
            planning: time of planning them, in plain rounds.
        """
        gain = tokens - elapsed - min(planning, MOST_PLANNING * tokens)
        # The first credit may be above the bound for gains.
        most = max(self._most, self.credit)
        due = self._share * elapsed
        repaid = min(due, self._advanced)
        self._advanced -= repaid
        credit = self.credit + due - repaid + gain
        kept = max(min(credit - most, gain), 0.0)
        self._reserve = min(self._reserve + kept, MOST_RESERVE)
        self.credit = min(max(credit, self._least), most)
