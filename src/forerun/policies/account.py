"""What drafts may lose: what is paid for learning, a share of all time, and what they have gained before."""

from __future__ import annotations

import math
from typing import Any

# Of a plain round, that planning can have taken: more than that was an interruption.
MOST_PLANNING = 0.2
# Plain rounds' time of gains that are kept for the texts to come, and by another process.
MOST_RESERVE, RESTORED_RESERVE = 50.0, 10.0


class Account:
    """Plain rounds' time that may still be lost.

    Args:
        share: of all time, that it is credited with.
        first: that it holds at first.
        least, most: that it ever holds. What is lost below the least is forgiven: drafts are only tried where
            they can be paid, so that most of it was noise. What is gained beyond the most goes to a reserve.
    """

    def __init__(self, share: float, first: float, least: float = -1.0, most: float = 10.0) -> None:
        self._share, self._least, self._most = share, least, most
        self.credit, self._reserve, self._advanced = first, 0.0, 0.0

    @property
    def learned(self) -> list[float]:
        """Ready for JSON."""
        return [self.credit, self._reserve]

    def restore(self, learned: Any) -> None:
        """Begin with what `learned` has given: with no more than a new one, and a small reserve at most,
        whatever a file says."""
        credit, reserve = map(float, learned)
        if not (math.isfinite(credit) and math.isfinite(reserve)):
            raise ValueError("an account")
        self.credit = min(credit, self.credit)
        self._reserve = min(max(reserve, 0.0), RESTORED_RESERVE)

    def charge(self, loss: float) -> None:
        """Take off what was lost outside of rounds."""
        self.credit = max(self.credit - loss, self._least)

    def draw(self, loss: float) -> None:
        """Let so much be lost again, as far as the reserve holds it."""
        drawn = min(max(loss - self.credit, 0.0), self._reserve)
        self.credit += drawn
        self._reserve -= drawn

    def advance(self, seconds: float) -> None:
        """Credit the share of time to come, which is not credited again: drafts are tried best early in a
        text, before much of it is to be caught up with."""
        more = max(min(self._share * seconds - self._advanced, self._most - self.credit), 0.0)
        self._advanced += more
        self.credit += more

    def settle(self, tokens: float, elapsed: float, planning: float) -> None:
        """Take in some rounds.

        Args:
            tokens: that they have brought, on average over their requests.
            elapsed: their time, in plain rounds.
            planning: what it took to plan them, likewise.
        """
        gain = tokens - elapsed - min(planning, MOST_PLANNING * tokens)
        # What it held at first may be more than gains can make of it.
        most = max(self._most, self.credit)
        due = self._share * elapsed
        repaid = min(due, self._advanced)
        self._advanced -= repaid
        credit = self.credit + due - repaid + gain
        kept = max(min(credit - most, gain), 0.0)
        self._reserve = min(self._reserve + kept, MOST_RESERVE)
        self.credit = min(max(credit, self._least), most)
