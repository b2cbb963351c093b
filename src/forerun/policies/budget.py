"""Time that drafts may lose: an account for all of them, and a schedule of tries for each drafter.

Drafts that are expected to pay may lose what the account holds: what learning costs, a share of all time, and
earlier gains. Those that are not are tried after pauses that grow and never end.
"""

from __future__ import annotations

import math
from typing import Any

# Rounds without a try: after the first one that failed, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 12, 1024
# Tokens of a first request.
FIRST_TOKENS = 128
# Share of the first requests' time that may be lost in learning, beyond the first SHORT plain rounds of each:
# nothing is learned in an answer that ends there.
TUITION, SHORT = 0.05, 8.0
# Share of a plain round beyond which planning time is taken for an interruption.
MOST_PLANNING = 0.2
# Most rounds without an accepted token that count: texts differ. Longest pause, as a share of the text:
# early in it, much may be found.
MOST_DRY, EARLY = 1024, 0.5
# Mean gain of rounds that draft by looking up, in plain rounds: before any was seen, at least, and the step
# with which it follows them. A loss of more than MOST_LOSS was an interruption.
FIRST_GAIN, LEAST_MEAN_GAIN, GAIN_STEP, MOST_LOSS = 1.0, 0.05, 0.05, 1.0
# Bounds of the credit, in plain rounds. Losses below LEAST are forgiven: drafts are only tried if they can be
# paid for, so those losses were mostly noise. A file restores at most RESTORED.
LEAST, MOST, RESTORED = -1.0, 10.0, 8.0


class Account:
    """Time that may still be lost, in plain rounds.

    Args:
        share: share of all time that is credited, and with it of a request's expected time in advance,
            because drafts are best tried early in a text.
        tuition: credit for learning beyond that, in all; TUITION of each request's time.
    """

    def __init__(self, share: float, tuition: float) -> None:
        self._share, self._tuition = share, tuition
        self.credit, self._advanced = 0.0, 0.0

    @property
    def learned(self) -> list[float]:
        """Credit and tuition left, ready for JSON."""
        return [self.credit, self._tuition]

    def restore(self, learned: Any) -> None:
        """Start from the values that `learned` returned; no file raises what a new account may lose."""
        credit, tuition = map(float, learned)
        if not (math.isfinite(credit) and math.isfinite(tuition)):
            raise ValueError("an account")
        self.credit = min(max(credit, LEAST), RESTORED)
        self._tuition = min(max(tuition, 0.0), self._tuition)

    def grant(self, seconds: float) -> None:
        """Credit a request of `seconds`, in plain rounds, in advance."""
        tuition = min(TUITION * max(seconds - SHORT, 0.0), self._tuition)
        more = max(min(self._share * seconds - self._advanced, MOST - self.credit), 0.0)
        self._tuition -= tuition
        self._advanced += more
        self.credit += tuition + more

    def charge(self, loss: float) -> None:
        """Subtract a loss outside of rounds."""
        self.credit = max(self.credit - loss, LEAST)

    def settle(self, tokens: float, elapsed: float, planning: float) -> None:
        """Take in some rounds.

        Args:
            tokens: tokens that they emitted, on average over their requests.
            elapsed: their time, in plain rounds.
            planning: time of planning them, in plain rounds.
        """
        gain = tokens - elapsed - min(planning, MOST_PLANNING * tokens)
        due = self._share * elapsed
        repaid = min(due, self._advanced)
        self._advanced -= repaid
        # The first credit may be above the bound for gains.
        most = max(MOST, self.credit)
        self.credit = min(max(self.credit + due - repaid + gain, LEAST), most)


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

    @property
    def learned(self) -> list[int]:
        """Pause and waited rounds, ready for JSON."""
        return [self.pause, self.waited]

    def restore(self, learned: Any) -> None:
        """Start from the values that `learned` returned; other values are ignored."""
        pause, waited = map(int, learned)
        if 0 <= pause <= LONGEST_PAUSE and waited >= 0:
            self.pause, self.waited = pause, min(waited, LONGEST_PAUSE)


class Search:
    """Pauses of looking up where it does not pay, because planning takes time too.

    After n rounds without an accepted token, text begins to repeat itself about once in n rounds, and a
    pause of r rounds misses r / 2 of what it repeats, each with the gain of a round that drafts.
    """

    def __init__(self) -> None:
        self._dry, self._gain = 0, FIRST_GAIN

    def observe(self, rounds: int, accepted: int = 0) -> None:
        """Record rounds, and the tokens accepted in them."""
        self._dry = 0 if accepted else min(self._dry + rounds, MOST_DRY)

    def gained(self, gain: float) -> None:
        """Record what a round that drafted by looking up has gained, in plain rounds."""
        self._gain += GAIN_STEP * (max(gain, -MOST_LOSS) - self._gain)

    def pause(self, planning: float, written: int) -> int:
        """The number of rounds that costs least, at least one.

        Args:
            planning: time that planning a round takes, in plain rounds.
            written: output tokens of the text.
        """
        best = math.sqrt(2.0 * planning * self._dry / max(self._gain, LEAST_MEAN_GAIN))
        return max(int(min(best, 1 + EARLY * written)), 1)
