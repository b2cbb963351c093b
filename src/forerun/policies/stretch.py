"""Rounds of policy `auto` that are planned at once, and rounds that are learned from together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from forerun.core import Draft, Plan, Request, RoundTimes, Verdict

# Rounds without an accepted token after which a stretch is over, because the text may have changed.
MISSES = 2
# Drafting rounds between two plain ones that are timed: SOON after one whose time was off by the factor
# DIFFERENT, at most LATE. A timed plain round counts as COUNTED, because others tell less of the machine's
# speed.
SOON, LATE, DIFFERENT, COUNTED = 25, 100, 1.2, 4
# Most plain rounds that are learned from together, and most that they count as.
REPEATED = 8
# Looking up takes time in each round. If nothing pays, it pauses for one round after DRY rounds without an
# accepted token, for two rounds after twice as many, and for at most MOST_MISSED.
DRY, MOST_MISSED = 24, 3


class Seen(NamedTuple):
    """Results of a round, and the seconds of planning it."""

    drafts: Sequence[Draft]
    verdicts: Sequence[Verdict]
    times: RoundTimes
    planning: float


@dataclass
class PlainRounds:
    """Rounds without a draft, of one batch size.

    Args:
        batch_size: number of requests.
        seconds: time of each round, without planning.
        planning: seconds of planning all of them.
    """

    batch_size: int = 0
    seconds: list[float] = field(default_factory=list)
    planning: float = 0.0

    def takes(self, batch_size: int) -> bool:
        """True if a round of `batch_size` requests can be added."""
        same = not self.seconds or batch_size == self.batch_size
        return same and len(self.seconds) < REPEATED

    def add(self, batch_size: int, seen: Seen) -> None:
        """Add a round."""
        self.batch_size = batch_size
        self.seconds.append(seen.times.target + seen.times.verify)
        self.planning += seen.planning


class Drought:
    """Rounds without a draft, and rounds without an accepted token, up to now."""

    def __init__(self) -> None:
        self.plain = self.dry = 0

    def note(self, rounds: int, drafted: bool = False, accepted: bool = False) -> None:
        """Note rounds that drafted alike; `accepted` if any drafted token was."""
        self.plain = 0 if drafted else self.plain + rounds
        self.dry = rounds if accepted else self.dry + rounds

    def missed(self, written: int) -> int:
        """Rounds in which a text of `written` tokens is not looked at, after one that found nothing."""
        return min(min(self.dry, written) // DRY, MOST_MISSED)


class Timing:
    """Schedule of the plain rounds that are timed among drafting ones."""

    def __init__(self) -> None:
        self._drafted, self._pause = 0, SOON

    @property
    def is_due(self) -> bool:
        """True if it is time for a plain round."""
        return self._drafted >= self._pause

    @property
    def counted(self) -> int:
        """Number of rounds that a plain one counts as."""
        return COUNTED if self._drafted >= SOON else 1

    def note(self, drafted: int, ratio: float) -> None:
        """Take in rounds.

        Args:
            drafted: number of rounds that drafted; 0 for plain rounds.
            ratio: seconds of a plain round over its expected seconds.
        """
        if not drafted and self._drafted >= SOON:
            as_expected = 1.0 / DIFFERENT < ratio < DIFFERENT
            self._pause = min(2 * self._pause, LATE) if as_expected else SOON
        self._drafted = self._drafted + drafted if drafted else 0


class Stretch:
    """Rounds of the same requests with the same plans.

    Attributes:
        plans: plan of each request; empty while no stretch runs.
        requests: the requests.
        drafts: True if any of the plans drafts.
        seen: the rounds that are over.
    """

    def __init__(self) -> None:
        self.plans, self.requests, self.drafts = list[Plan](), list[Request](), False
        self.seen = list[Seen]()
        self._ids, self._left, self._misses = list[int](), 0, 0

    def begin(self, requests: Sequence[Request], plans: list[Plan], rounds: int) -> None:
        """Start a stretch of `rounds` rounds, including the one that is being planned."""
        if rounds > 1:
            self.plans, self.requests, self._left = plans, list(requests), rounds - 1
            self.drafts, self._misses = any(plan.num_tokens for plan in plans), 0
            self._ids = [request.request_id for request in requests]

    def goes_on(self, requests: Sequence[Request]) -> bool:
        """True if the next round belongs to this stretch; a request that comes or goes ends it."""
        if self._left and self._ids == [request.request_id for request in requests]:
            self._left -= 1
            return True
        return False

    def note(self, seen: Seen) -> None:
        """Add a round that is over."""
        # Probabilities and states of drafts are dropped: they are large, and nothing is learned from them.
        drafts = [Draft(draft.tree, draft.token_ids) for draft in seen.drafts]
        self.seen.append(seen._replace(drafts=drafts) if self.drafts else seen)
        if self.drafts and not any(verdict.num_accepted for verdict in seen.verdicts):
            self._misses += 1
            if self._misses == MISSES:
                self._left = 0
