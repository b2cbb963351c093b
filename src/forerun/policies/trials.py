"""Schedule of tries of a drafter that does not pay: after pauses that grow and never end."""

from __future__ import annotations

from typing import Any

# Rounds without a try: after the first one that failed, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 12, 1024


class Trials:
    """Schedule of one drafter's tries.

    Attributes:
        pause: rounds between tries; 0 for a drafter that was not given up.
        waited: rounds since the last try.
    """

    def __init__(self) -> None:
        self.pause, self.waited = 0, 0

    @property
    def rounds_left(self) -> int:
        """Number of rounds until the next try."""
        return self.pause - self.waited

    @property
    def is_given_up(self) -> bool:
        """True if a try has failed since drafts were last expected to pay, or is long overdue."""
        return self.pause > FIRST_PAUSE or self.waited > 2 * FIRST_PAUSE

    def wait(self, rounds: int = 1) -> None:
        """Count rounds in which the drafter could have drafted but was not expected to pay."""
        if not self.pause:
            self.pause = FIRST_PAUSE
        self.waited += rounds

    def fail(self) -> None:
        """Record a try that has not paid."""
        self.pause = min(max(2 * self.pause, FIRST_PAUSE), LONGEST_PAUSE)
        self.waited = 0

    def succeed(self) -> None:
        """Record a try that has paid: the next comes at once."""
        self.waited = self.pause

    def reset(self) -> None:
        """Record that drafts are expected to pay again."""
        self.pause, self.waited = 0, 0

    @property
    def learned(self) -> list[int]:
        """Pause and waited rounds, ready for JSON."""
        return [self.pause, self.waited]

    def restore(self, learned: Any) -> None:
        """Start from the values that `learned` returned; other values are ignored."""
        pause, waited = map(int, learned)
        if 0 <= pause <= LONGEST_PAUSE and waited >= 0:
            self.pause, self.waited = pause, min(waited, LONGEST_PAUSE)
