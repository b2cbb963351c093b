"""Expected number of accepted tokens of a request's next draft, estimated from earlier drafts.

The estimates depend only on the past and on the drafted prefix: whether a token is offered never
depends on its own value. Rates are conditional: among drafts whose first i tokens were accepted,
the share whose next token was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate, chain, repeat, takewhile
from operator import mul
from typing import Any

LONGEST = 64
# Positions for which the rates of all requests are computed at least.
USUAL = 16
# Most combinations of namespace and level; beyond it all rates are dropped.
MOST_KINDS = 4096
# Rounds that the rates of all requests count as beside a request's own, and the prior beside all requests'.
POOLED_WEIGHT, PRIOR_WEIGHT = 6.0, 1.5
# Factor by which the weight of old rounds shrinks with each draft: of a request's own, and of all requests'.
REQUEST_MEMORY, POOLED_MEMORY = 0.92, 0.995
# Most rounds that rates from a file count as, because conditions may have changed since.
RESTORED_WEIGHT = 40.0
# Tokens with a lower probability of being accepted are not offered.
NEGLIGIBLE = 0.03
LEVELS = 8


class Rates:
    """Acceptance by position; old rounds count less and less.

    Attributes:
        at_risk: number of rounds that reached a position.
        accepted: number of those in which its token was accepted.
        rounds: number of all rounds.
    """

    __slots__ = ("_memory", "accepted", "at_risk", "rounds")

    def __init__(self, memory: float) -> None:
        self._memory, self.rounds = memory, 0
        self.at_risk: list[float] = []
        self.accepted: list[float] = []

    def observe(self, planned: int, accepted: int) -> None:
        """Take in a draft of `planned` tokens, of which `accepted` were accepted."""
        self.forget(1)
        seen = min(accepted + 1, planned)
        missing = [0.0] * (seen - len(self.at_risk))
        self.at_risk += missing
        self.accepted += missing
        for position in range(seen):
            self.at_risk[position] += 1.0
        for position in range(accepted):
            self.accepted[position] += 1.0

    def forget(self, rounds: int) -> None:
        """Let earlier rounds count less, as `rounds` more that tell nothing would."""
        memory = self._memory**rounds
        self.at_risk = [memory * value for value in self.at_risk]
        self.accepted = [memory * value for value in self.accepted]
        self.rounds += rounds

    def blended(self, prior: Sequence[float], weight: float, length: int) -> list[float]:
        """Rates of the first `length` positions, with a prior that counts as `weight` rounds.

        A position beyond the prior takes the rate of the one before it as its prior.
        """
        known, given, rate, rates = len(self.at_risk), len(prior), 0.0, list[float]()
        for position in range(length):
            if position < given:
                rate = prior[position]
            if position < known:
                rate = (self.accepted[position] + weight * rate) / (self.at_risk[position] + weight)
            rates.append(rate)
        return rates

    def without(self, part: Rates) -> Rates:
        """Rates without the rounds of `part`, which were taken in here too; `part` is aged in place."""
        rest, missing = Rates(self._memory), repeat(0.0)
        part.forget(self.rounds - part.rounds)
        rest.at_risk = [
            max(x - y, 0.0)
            for x, y in zip(self.at_risk, chain(part.at_risk, missing), strict=False)
        ]
        rest.accepted = [
            max(x - y, 0.0)
            for x, y in zip(self.accepted, chain(part.accepted, missing), strict=False)
        ]
        return rest

    def restore(self, values: Any) -> None:
        """Start from lists of `at_risk` and `accepted`; other values are ignored."""
        at_risk, accepted = (list(map(float, values[name])) for name in ("at_risk", "accepted"))
        if len(at_risk) == len(accepted) <= LONGEST and all(
            0.0 <= a <= r < 1e9 for a, r in zip(accepted, at_risk, strict=True)
        ):
            scale = min(1.0, RESTORED_WEIGHT / max([*at_risk, 1.0]))
            self.at_risk = [scale * value for value in at_risk]
            self.accepted = [scale * value for value in accepted]


class Acceptance:
    """Acceptance of one drafter by its level of confidence: of all requests, of a namespace, of each request.

    The rates of all requests are the prior for a namespace, and the rates of a namespace for a
    request, without its own drafts, which would otherwise count three times.

    Args:
        prior: rates by position before any draft was seen; None: they follow from the drafter's
            confidence.
        prior_weight: rounds that the prior counts as.
    """

    def __init__(
        self, prior: Sequence[float] | None = None, prior_weight: float = PRIOR_WEIGHT
    ) -> None:
        self._prior, self._prior_weight = prior, prior_weight
        self._pooled = defaultdict[tuple[str, int], Rates](lambda: Rates(POOLED_MEMORY))
        self._requests = defaultdict[int, Rates](lambda: Rates(REQUEST_MEMORY))
        # The parts of running requests in the rates of their namespaces, by request and level.
        self._parts = defaultdict[int, dict[int, Rates]](dict)
        self._known: dict[int, list[float]] = {}

    @property
    def evidence(self) -> float:
        """Number of drafts that were seen; old drafts count less."""
        return sum(
            rates.at_risk[0]
            for (name, _), rates in self._pooled.items()
            if rates.at_risk and not name
        )

    def survival(self, request_id: int, namespace: str, level: int, length: int) -> list[float]:
        """Probability that the first 1, 2, … tokens of a request's next draft are all accepted.

        The list ends where the probability becomes negligible.
        """
        rates, own = self._pooled_rates(level, length), self._requests.get(request_id)
        if namespace:
            pooled = self._pooled[namespace, level]
            if own is not None and level in self._parts[request_id]:
                pooled = pooled.without(self._parts[request_id][level])
            rates = pooled.blended(rates, POOLED_WEIGHT, length)
        if own is not None:
            rates = own.blended(rates, POOLED_WEIGHT, length)
        return [*takewhile(NEGLIGIBLE.__lt__, accumulate(rates[:length], mul))]

    def _pooled_rates(self, level: int, length: int) -> list[float]:
        """Conditional rates over all requests, for at least `length` positions."""
        known = self._known.get(level)
        if known is None or len(known) < length:
            prior = self._prior or [level_rate(level)]
            pooled = self._pooled["", level]
            known = pooled.blended(prior, self._prior_weight, max(length, USUAL))
            self._known[level] = known
        return known

    def observe(
        self, request_id: int, namespace: str, level: int, planned: int, accepted: int
    ) -> None:
        """Take in a draft of `planned` tokens, of which `accepted` were accepted."""
        if len(self._pooled) > MOST_KINDS:
            self._pooled.clear()
            self._known.clear()
            self._parts.clear()
        self._pooled["", level].observe(planned, accepted)
        self._known.pop(level, None)
        if namespace:
            pooled = self._pooled[namespace, level]
            part = self._parts[request_id].setdefault(level, Rates(POOLED_MEMORY))
            part.forget(pooled.rounds - part.rounds)
            for rates in (pooled, part):
                rates.observe(planned, accepted)
        self._requests[request_id].observe(planned, accepted)

    def release(self, request_id: int) -> None:
        """Forget a request; its drafts still count among those of all requests."""
        self._requests.pop(request_id, None)
        self._parts.pop(request_id, None)

    def as_dict(self) -> dict[str, Any]:
        """Rates over all requests by level, ready for JSON."""
        return {
            str(level): {"at_risk": rates.at_risk, "accepted": rates.accepted}
            for (namespace, level), rates in self._pooled.items()
            if not namespace
        }

    def restore(self, values: Any) -> None:
        """Start from the rates that `as_dict` returned."""
        for level, lists in dict(values).items():
            self._pooled["", int(level)].restore(lists)


def level_of(confidence: float) -> int:
    """Level of a drafter's confidence in [0, 1], in steps of an eighth."""
    return int(confidence * LEVELS)


def level_rate(level: int) -> float:
    """Assumed acceptance rate at a level before any draft was seen; drafters tend to be overconfident."""
    return 0.8 * (level + 0.5) / (LEVELS + 1)
