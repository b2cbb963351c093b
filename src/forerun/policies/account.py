"""What drafts may lose: a share of all time, and what they have gained before."""

from __future__ import annotations

# Plain rounds that the account holds at first, at least and at most.
FIRST, LEAST, MOST = 3.0, -3.0, 5.0
# Of a plain round, that planning can have taken: more than that was an interruption.
MOST_PLANNING = 0.2


class Account:
    """Plain rounds' time that may still be lost.

    Args:
        share: of all time, that it is credited with.
    """

    def __init__(self, share: float) -> None:
        self._share, self.credit = share, FIRST

    @property
    def is_empty(self) -> bool:
        """Whether drafts have lost more than they may."""
        return self.credit < 0.0

    def allows(self, loss: float) -> bool:
        """Whether so much may be lost."""
        return loss <= self.credit

    def charge(self, loss: float) -> None:
        """Take off what was lost outside of rounds."""
        self.credit = max(self.credit - loss, LEAST)

    def settle(self, tokens: float, elapsed: float, planning: float) -> None:
        """Take in a round.

        Args:
            tokens: that it has brought, on average over its requests.
            elapsed: its time, in plain rounds.
            planning: what it took to plan it, likewise.
        """
        gain = tokens - elapsed - min(planning, MOST_PLANNING)
        self.credit = min(max(self.credit + self._share * elapsed + gain, LEAST), MOST)
