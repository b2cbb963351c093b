"""When a drafter that does not pay is tried again: after pauses that grow and never end."""

from __future__ import annotations

from typing import Any

# Rounds without a try: after the first that failed, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 16, 1024


class Trials:
    """The schedule of one drafter's tries; a pause of 0 is that of a drafter that was not given up."""

    def __init__(self) -> None:
        self.pause, self._waited = 0, 0

    @property
    def rounds_left(self) -> int:
        """Rounds until the next try."""
        return self.pause - self._waited

    @property
    def is_given_up(self) -> bool:
        """Whether a try has failed since drafts were last expected to pay, or is long overdue."""
        return self.pause > FIRST_PAUSE or self._waited > 2 * FIRST_PAUSE

    @property
    def waited(self) -> int:
        """Rounds since the last try."""
        return self._waited

    def wait(self, rounds: int = 1) -> None:
        """Note rounds in which it could have drafted and was not expected to pay."""
        if not self.pause:
            self.pause = FIRST_PAUSE
        self._waited += rounds

    def fail(self) -> None:
        """Note a try that has not paid."""
        self.pause = min(max(2 * self.pause, FIRST_PAUSE), LONGEST_PAUSE)
        self._waited = 0

    def succeed(self) -> None:
        """Note a try that has paid: the next comes at once."""
        self._waited = self.pause

    def reset(self) -> None:
        """Note that drafts are expected to pay again."""
        self.pause, self._waited = 0, 0

    @property
    def learned(self) -> list[int]:
        """Ready for JSON."""
        return [self.pause, self._waited]

    def restore(self, learned: Any) -> None:
        """Begin with what `learned` has given; nothing else is taken."""
        pause, waited = map(int, learned)
        if 0 <= pause <= LONGEST_PAUSE and waited >= 0:
            self.pause, self._waited = pause, min(waited, pause)
