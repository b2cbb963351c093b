"""When a drafter that does not pay is tried again: after pauses that grow and never end."""

from __future__ import annotations

from typing import Any

# Rounds without a try: after the first that failed, at most, and the divisor where a text begins.
FIRST_PAUSE, LONGEST_PAUSE, SOONER = 16, 1024, 4


class Trials:
    """The schedule of one drafter's tries; a pause of 0 is that of a drafter that was not given up."""

    def __init__(self) -> None:
        self.pause, self._waited, self._is_early = 0, 0, False

    @property
    def rounds_left(self) -> int:
        """Rounds until the next try."""
        return 0 if self._is_early else self.pause - self._waited

    @property
    def is_overdue(self) -> bool:
        """Whether its whole pause is over, whatever has changed."""
        return self._waited >= self.pause

    def wait(self, rounds: int = 1) -> None:
        """Note rounds in which it could have drafted and was not expected to pay."""
        if not self.pause:
            self.pause = FIRST_PAUSE
        self._waited += rounds

    def hasten(self) -> None:
        """Note that a text begins: what a drafter has to catch up with is least then."""
        self._is_early = self._waited >= self.pause // SOONER

    def fail(self) -> None:
        """Note a try that has not paid."""
        self.pause = min(max(2 * self.pause, FIRST_PAUSE), LONGEST_PAUSE)
        self._waited, self._is_early = 0, False

    def succeed(self) -> None:
        """Note a try that has paid: the next comes at once."""
        self._waited = self.pause

    def reset(self) -> None:
        """Note that drafts are expected to pay again."""
        self.pause, self._waited, self._is_early = 0, 0, False

    @property
    def learned(self) -> list[int]:
        """Ready for JSON."""
        return [self.pause, self._waited]

    def restore(self, learned: Any) -> None:
        """Begin with what `learned` has given; nothing else is taken."""
        pause, waited = map(int, learned)
        if 0 <= pause <= LONGEST_PAUSE and waited >= 0:
            self.pause, self._waited = pause, min(waited, pause)
