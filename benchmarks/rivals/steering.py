"""Parts that steer a recording engine: a policy with given lengths, an observer that keeps one token of
each verdict, and a drafter that fills or skips rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from forerun.contracts import Drafter
from forerun.core import Draft, Plan, Request, SparseProbs, Verdict
from forerun.measure.watching import VerifiedDraft
from forerun.policies.base import BasePolicy
from forerun.randomness import Randomness


@dataclass(frozen=True)
class Noted:
    """Verdict of a rule on one draft, before it was cut."""

    nodes: int
    depth: int
    accepted: int
    token_probs: tuple[float, ...]


class SetLength(BasePolicy):
    """Policy that plans given lengths in turns.

    Attributes:
        lengths: in turns; all requests of a round have the same one.
        planned: tokens planned in the last round.
        asks: whose confidence is noted before each round, if anyone's.
        confidences: of the last round.
    """

    name = "set_length"

    def __init__(self, lengths: Sequence[int] = (4,)) -> None:
        self.lengths: Sequence[int] = lengths
        self.planned = 0
        self.asks: Drafter | None = None
        self.confidences: list[float] = []
        self._turn = 0

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        self.planned = self.lengths[self._turn % len(self.lengths)]
        self._turn += 1
        if self.asks is not None:
            self.confidences = [self.asks.confidence(request) for request in requests]
        return [Plan(self.planned)] * len(requests)


class FirstTokens:
    """Notes of what a rule accepts, of which the first token alone is emitted.

    The distribution of that token is the target's, as the whole verdict's is: for greedy requests and
    requests with a seed it is plain decoding's own token.
    """

    def __init__(self) -> None:
        self.notes: list[Noted] = []

    def see(self, verified: VerifiedDraft) -> Verdict:
        """Note a verdict, and cut it."""
        draft, verdict = verified.draft, verified.verdict
        probs = largest_probs(draft)
        self.notes.append(Noted(len(draft), draft.tree.depth, verdict.num_accepted, probs))
        return verdict.truncate(1)

    def accepted(self) -> int:
        """Tokens that were accepted in the last round."""
        return self.notes[-1].accepted if self.notes else 0

    def take(self) -> Noted:
        """The note of the last round; an empty one if the round failed."""
        return self.notes.pop() if self.notes else Noted(0, 0, 0, ())


def largest_probs(draft: Draft) -> tuple[float, ...]:
    """The largest probability in the row that each token was drawn from; none for point masses."""
    if draft.probs is None:
        return ()
    values = draft.probs.values if isinstance(draft.probs, SparseProbs) else draft.probs
    return tuple(values.amax(-1).tolist())


class Steered:
    """A drafter of point masses that is steered while it is recorded and timed.

    Args:
        drafter: that drafts.

    Attributes:
        fills: fill its short drafts up to the planned length, so that every length is timed.
        accepted: tokens that would be accepted of its last draft; where given, it only observes the
            rounds that it would have had with drafts of the longest length: some drafters learn from
            rejected tokens, too.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.drafter, self.fills = drafter, False
        self.accepted: Callable[[], int] | None = None
        self._skips = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.drafter, name)

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        drafts = self.drafter.propose(requests, plans, randomness)
        if not self.fills:
            return drafts
        return [_filled(*drafted) for drafted in zip(requests, plans, drafts, strict=True)]

    def observe(self, *verified: Any) -> None:
        if self.accepted is None:
            self._skips = 0
        elif self._skips:
            self._skips -= 1
            return
        else:
            self._skips = self.accepted()
        self.drafter.observe(*verified)


def _filled(request: Request, plan: Plan, draft: Draft) -> Draft:
    if not plan.is_chain or len(draft) >= plan.num_tokens:
        return draft
    usable = [token for token in request.token_ids if token not in request.stop_token_ids]
    if not usable or (draft.token_ids and draft.token_ids[-1] in request.stop_token_ids):
        return draft
    filler = cycle(usable[-plan.num_tokens :])
    more = [next(filler) for _ in range(plan.num_tokens - len(draft))]
    return Draft.chain([*draft.token_ids, *more])
