"""Expected number of accepted tokens of a request's next draft, estimated from earlier drafts.

The estimates depend only on the past and on the drafted prefix: whether a token is offered never
depends on its own value. Rates are conditional: among drafts whose first i tokens were accepted,
the share whose next token was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, takewhile
from operator import mul
from typing import Any

LONGEST = 64
# USUAL: positions for which the rates of all requests are computed at least. FEW: drafts between updates.
USUAL, FEW = 16, 8
# Most combinations of namespace and level; beyond it the rates of all named namespaces are dropped.
MOST_KINDS = 4096
# Rounds that the rates of all requests count as beside a request's own, and the prior beside all requests'.
POOLED_WEIGHT, PRIOR_WEIGHT = 6.0, 1.5
# Factor by which the weight of old rounds shrinks with each draft: of a request's own, and of all requests'.
REQUEST_MEMORY, POOLED_MEMORY = 0.92, 0.995
# Factor after some rounds without a draft, in which the request's text has moved on.
UNSEEN_MEMORY = 0.92
# Most rounds that rates from a file count as, because conditions may have changed since.
RESTORED_WEIGHT = 40.0
# Tokens with a lower probability of being accepted are not offered.
NEGLIGIBLE = 0.03
_LARGEST = 1e100


class Rates:
    """Acceptance by position; old rounds count less and less.

    Instead of shrinking old weights, new weights grow, which is the same up to a common factor.
    """

    __slots__ = ("_memory", "_weight", "accepted", "at_risk", "planned")

    def __init__(self, memory: float) -> None:
        self._memory, self._weight = memory, 1.0
        self.at_risk: list[float] = []
        self.accepted: list[float] = []
        self.planned = 0

    def observe(self, planned: int, accepted: int) -> None:
        """Take in a draft of `planned` tokens, of which `accepted` were accepted."""
        self.planned += 1
        seen = min(accepted + 1, planned)
        missing = seen - len(self.at_risk)
        if missing > 0:
            self.at_risk += [0.0] * missing
            self.accepted += [0.0] * missing
        for position in range(seen):
            self.at_risk[position] += self._weight
        for position in range(accepted):
            self.accepted[position] += self._weight
        self.fade(self._memory)

    def fade(self, memory: float) -> None:
        """Multiply the weight of past rounds by `memory`."""
        self._weight /= memory
        if self._weight > _LARGEST:
            self.at_risk = [value / self._weight for value in self.at_risk]
            self.accepted = [value / self._weight for value in self.accepted]
            self._weight = 1.0

    def evidence(self, position: int = 0) -> float:
        """Number of rounds that reached a position; old rounds count less."""
        return self.at_risk[position] / self._weight if position < len(self.at_risk) else 0.0

    def blended(self, prior: Sequence[float], weight: float, length: int) -> Iterator[float]:
        """Rates of the first `length` positions, with a prior that counts as `weight` rounds.

        A position beyond the prior takes the rate of the one before it as its prior.
        """
        known, own, given = len(self.at_risk), weight * self._weight, len(prior)
        rate = 0.0
        for position in range(length):
            if position < given:
                rate = prior[position]
            if position < known:
                rate = (self.accepted[position] + own * rate) / (self.at_risk[position] + own)
            yield rate

    def as_lists(self) -> dict[str, list[float]]:
        """Counts in rounds, ready for JSON."""
        return {
            "at_risk": [value / self._weight for value in self.at_risk],
            "accepted": [value / self._weight for value in self.accepted],
        }

    def restore(self, values: Any) -> None:
        """Start from the lists that `as_lists` returned; other values are ignored."""
        at_risk, accepted = (list(map(float, values[name])) for name in ("at_risk", "accepted"))
        if len(at_risk) == len(accepted) <= LONGEST and all(
            0.0 <= a <= r < 1e9 for a, r in zip(accepted, at_risk, strict=True)
        ):
            scale = min(1.0, RESTORED_WEIGHT / max([*at_risk, 1.0]))
            self.at_risk = [scale * value for value in at_risk]
            self.accepted, self._weight = [scale * value for value in accepted], 1.0


class Acceptance:
    """Acceptance of one drafter by its level of confidence: of all requests, of a namespace, of each request.

    The rates of all requests are the prior for a namespace, and the rates of a namespace for a
    request.

    Args:
        prior: rates by position before any draft was seen; None: they follow from the drafter's
            confidence.
        prior_weight: rounds that the prior counts as.
    """

    def __init__(
        self, prior: Sequence[float] | None = None, prior_weight: float = PRIOR_WEIGHT
    ) -> None:
        self._prior, self._prior_weight = prior, prior_weight
        self._pooled: dict[tuple[str, int], Rates] = {}
        self._requests: dict[int, Rates] = {}
        self._known: dict[tuple[str, int], list[float]] = {}

    @property
    def evidence(self) -> float:
        """Number of drafts that were seen; old drafts count less."""
        return sum(rates.evidence() for (name, _), rates in self._pooled.items() if not name)

    def pooled(self, namespace: str, level: int) -> Rates:
        """Rates over all requests of a namespace, or of all if it is empty, at a level of confidence."""
        key = (namespace, level)
        if key not in self._pooled:
            if len(self._pooled) > MOST_KINDS:
                self._pooled = {key: rates for key, rates in self._pooled.items() if not key[0]}
                self._known.clear()
            self._pooled[key] = Rates(POOLED_MEMORY)
        return self._pooled[key]

    def survival(self, request_id: int, namespace: str, level: int, length: int) -> list[float]:
        """Probability that the first 1, 2, … tokens of a request's next draft are all accepted.

        The list ends where the probability becomes negligible.
        """
        known, own = self._pooled_rates(namespace, level, length), self._requests.get(request_id)
        if own is None:
            rates: Iterable[float] = known[:length]
        else:
            rates = own.blended(known, POOLED_WEIGHT, length)
        return [*takewhile(NEGLIGIBLE.__lt__, accumulate(rates, mul))]

    def _pooled_rates(self, namespace: str, level: int, length: int) -> list[float]:
        """Conditional rates over all requests of a namespace, for at least `length` positions."""
        key = (namespace, level)
        known = self._known.get(key)
        if known is None or len(known) < length:
            prior, weight = self._prior or [level_rate(level)], self._prior_weight
            if namespace:
                prior, weight = self._pooled_rates("", level, length), POOLED_WEIGHT
            known = [*self.pooled(*key).blended(prior, weight, max(length, USUAL))]
            self._known[key] = known
        return known

    def observe(
        self, request_id: int, namespace: str, level: int, planned: int, accepted: int
    ) -> None:
        """Take in a draft of `planned` tokens, of which `accepted` were accepted."""
        for name in {"", namespace}:
            pooled = self.pooled(name, level)
            pooled.observe(planned, accepted)
            if pooled.planned < FEW or pooled.planned % FEW == 0:
                self._known.pop((name, level), None)
        if request_id not in self._requests:
            self._requests[request_id] = Rates(REQUEST_MEMORY)
        self._requests[request_id].observe(planned, accepted)

    def fade(self, request_id: int) -> None:
        """Reduce the weight of a request's own rates, after some rounds that have shown nothing."""
        own = self._requests.get(request_id)
        if own is not None:
            own.fade(UNSEEN_MEMORY)

    def release(self, request_id: int) -> None:
        """Forget a request; its drafts still count among those of all requests."""
        self._requests.pop(request_id, None)

    def as_dict(self) -> dict[str, Any]:
        """Rates over all requests by level, ready for JSON."""
        return {
            str(level): rates.as_lists()
            for (namespace, level), rates in self._pooled.items()
            if not namespace
        }

    def restore(self, values: Any) -> None:
        """Start from the rates that `as_dict` returned."""
        for level, lists in dict(values).items():
            self.pooled("", int(level)).restore(lists)


LEVELS = 8


def level_of(confidence: float) -> int:
    """Level of a drafter's confidence in [0, 1], in steps of an eighth."""
    return int(confidence * LEVELS)


def level_rate(level: int) -> float:
    """Assumed acceptance rate at a level before any draft was seen; drafters tend to be overconfident."""
    return 0.8 * (level + 0.5) / (LEVELS + 1)
