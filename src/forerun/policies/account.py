"""What drafts may lose: what is paid for learning, a share of all time, and what they have gained before."""

from __future__ import annotations

# Of a plain round, that planning can have taken: more than that was an interruption.
MOST_PLANNING = 0.2


class Account:
    """Plain rounds' time that may still be lost.

    Args:
        share: of all time, that it is credited with.
        first: that it holds at first.
        least, most: that it ever holds. What is lost below the least is forgiven: drafts are only tried
            where they can be paid, so that it was noise.
    """

    def __init__(self, share: float, first: float, least: float = -1.0, most: float = 5.0) -> None:
        self._share, self._least, self._most = share, least, most
        self.credit = first

    def charge(self, loss: float) -> None:
        """Take off what was lost outside of rounds."""
        self.credit = max(self.credit - loss, self._least)

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
        self.credit = min(max(self.credit + self._share * elapsed + gain, self._least), most)
