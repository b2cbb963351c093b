"""Rounds of policy `auto` that are planned at once, and those that are taken in together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from forerun.core import Draft, Plan, Request, RoundTimes, Verdict

# A stretch in which so many rounds had nothing accepted is over: the text may have changed.
MISSES = 2
# Rounds that draft between two plain ones that are timed: after one that differed from what was expected by
# the factor DIFFERENT, and at most. Such a plain round counts as several, as others tell less of the machine.
SOON, LATE, DIFFERENT, COUNTED = 25, 100, 1.2, 4
# Plain rounds that are taken in together, and that any number of them counts as at most.
REPEATED = 8


class Seen(NamedTuple):
    """What a round has come to, and the seconds that planning it took."""

    drafts: Sequence[Draft]
    verdicts: Sequence[Verdict]
    times: RoundTimes
    planning: float


@dataclass
class PlainRounds:
    """Rounds without a draft, of one batch size.

    Args:
        batch_size: requests.
        seconds: of each round, without planning.
        planning: seconds of all of them.
    """

    batch_size: int = 0
    seconds: list[float] = field(default_factory=list)
    planning: float = 0.0

    def takes(self, batch_size: int) -> bool:
        """Whether a round of so many requests can be added."""
        same = not self.seconds or batch_size == self.batch_size
        return same and len(self.seconds) < REPEATED

    def add(self, batch_size: int, seen: Seen) -> None:
        """Note a round."""
        self.batch_size = batch_size
        self.seconds.append(seen.times.target + seen.times.verify)
        self.planning += seen.planning


class Timing:
    """When a plain round is timed among those that draft."""

    def __init__(self) -> None:
        self._drafted, self._pause = 0, SOON

    @property
    def is_due(self) -> bool:
        """Whether it is time for a plain round."""
        return self._drafted >= self._pause

    @property
    def counted(self) -> int:
        """Rounds that a plain one counts as."""
        return COUNTED if self._drafted >= SOON else 1

    def note(self, drafted: int, ratio: float) -> None:
        """Note rounds.

        Args:
            drafted: of them, those that drafted: all or none.
            ratio: of a plain one, its seconds over what was expected.
        """
        if not drafted and self._drafted >= SOON:
            as_expected = 1.0 / DIFFERENT < ratio < DIFFERENT
            self._pause = min(2 * self._pause, LATE) if as_expected else SOON
        self._drafted = self._drafted + drafted if drafted else 0


class Stretch:
    """Rounds of the same requests with the same plans.

    Attributes:
        plans: for each of the requests; none while no stretch runs.
        requests: that they are for.
        drafts: whether any of them drafts.
        seen: the rounds that are over.
    """

    def __init__(self) -> None:
        self.plans, self.requests, self.drafts = list[Plan](), list[Request](), False
        self.seen = list[Seen]()
        self._ids, self._left, self._misses = list[int](), 0, 0

    def begin(self, requests: Sequence[Request], plans: list[Plan], rounds: int) -> None:
        """Plan so many rounds alike, the one that is being planned among them."""
        if rounds > 1:
            self.plans, self.requests, self._left = plans, list(requests), rounds - 1
            self.drafts, self._misses = any(plan.num_tokens for plan in plans), 0
            self._ids = [request.request_id for request in requests]

    def goes_on(self, requests: Sequence[Request]) -> bool:
        """Whether the next round belongs to it: a request that comes or goes ends it."""
        if self._left and self._ids == [request.request_id for request in requests]:
            self._left -= 1
            return True
        return False

    def note(self, seen: Seen) -> None:
        """Note a round that is over."""
        # Probabilities and states of drafts are large, and nothing is learned from them.
        drafts = [Draft(draft.tree, draft.token_ids) for draft in seen.drafts]
        self.seen.append(seen._replace(drafts=drafts) if self.drafts else seen)
        if self.drafts and not any(verdict.num_accepted for verdict in seen.verdicts):
            self._misses += 1
            if self._misses == MISSES:
                self._left = 0
