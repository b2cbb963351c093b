"""How many drafted tokens a request's next draft is expected to have accepted, from what was seen.

All is estimated from the past and from the drafted prefix: whether a token is offered never depends on
its own value. Rates are conditional: of the drafts whose first i tokens stood, the share whose next
one did.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, takewhile
from operator import mul
from typing import Any

LONGEST = 64
# What all requests have shown is worked out for so many positions, and again after so many drafts.
USUAL, FEW = 16, 8
# Namespaces times levels that are told apart at most; after that those of names begin anew.
MOST_KINDS = 4096
# What a request's own rounds weigh against those of all requests, and these against the prior.
POOLED_WEIGHT, PRIOR_WEIGHT = 6.0, 1.5
# What is left of the weight of what was seen, a round later: of a request's, and of all requests'.
REQUEST_MEMORY, POOLED_MEMORY = 0.92, 0.995
# The same after some rounds without a draft: what it knew of the text goes out of date.
UNSEEN_MEMORY = 0.92
# What is read from a file weighs no more rounds than this: it was another day.
RESTORED_WEIGHT = 40.0
# Tokens less probable to stand than this are not offered.
NEGLIGIBLE = 0.03
_LARGEST = 1e100


class Rates:
    """Acceptance by position, with the weight of old rounds fading.

    Old weights stay as they are and new ones grow, which is the same but for a common factor.
    """

    __slots__ = ("_memory", "_weight", "accepted", "at_risk", "planned")

    def __init__(self, memory: float) -> None:
        self._memory, self._weight = memory, 1.0
        self.at_risk: list[float] = []
        self.accepted: list[float] = []
        self.planned = 0

    def observe(self, planned: int, accepted: int) -> None:
        """Take in a draft of which so many tokens were planned, and so many accepted."""
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
        """Let what was seen weigh less beside what is to come."""
        self._weight /= memory
        if self._weight > _LARGEST:
            self.at_risk = [value / self._weight for value in self.at_risk]
            self.accepted = [value / self._weight for value in self.accepted]
            self._weight = 1.0

    def evidence(self, position: int = 0) -> float:
        """Rounds that tell of a position, old ones counted less."""
        return self.at_risk[position] / self._weight if position < len(self.at_risk) else 0.0

    def blended(self, prior: Sequence[float], weight: float, length: int) -> Iterator[float]:
        """Rates of the first `length` positions, where a prior counts as so many rounds; a position
        beyond the prior is thought to be like the one before it."""
        known, own, given = len(self.at_risk), weight * self._weight, len(prior)
        rate = 0.0
        for position in range(length):
            if position < given:
                rate = prior[position]
            if position < known:
                rate = (self.accepted[position] + own * rate) / (self.at_risk[position] + own)
            yield rate

    def as_lists(self) -> dict[str, list[float]]:
        """Ready for JSON, in rounds."""
        return {
            "at_risk": [value / self._weight for value in self.at_risk],
            "accepted": [value / self._weight for value in self.accepted],
        }

    def restore(self, values: Any) -> None:
        """Begin with what `as_lists` has given; nothing else is taken."""
        at_risk, accepted = (list(map(float, values[name])) for name in ("at_risk", "accepted"))
        if len(at_risk) == len(accepted) <= LONGEST and all(
            0.0 <= a <= r < 1e9 for a, r in zip(accepted, at_risk, strict=True)
        ):
            scale = min(1.0, RESTORED_WEIGHT / max([*at_risk, 1.0]))
            self.at_risk = [scale * value for value in at_risk]
            self.accepted, self._weight = [scale * value for value in accepted], 1.0


class Acceptance:
    """Acceptance of one drafter by how confident it was: of all its requests, of those of a namespace, to
    which all of them are the prior, and of each request.

    Args:
        prior: by position, where nothing was seen; None scales with the drafter's confidence.
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
        """Drafts that were seen, old ones counted less."""
        return sum(rates.evidence() for (name, _), rates in self._pooled.items() if not name)

    def pooled(self, namespace: str, level: int) -> Rates:
        """What all requests of a namespace have shown at a level of confidence; without a name, of all."""
        key = (namespace, level)
        if key not in self._pooled:
            if len(self._pooled) > MOST_KINDS:
                self._pooled = {key: rates for key, rates in self._pooled.items() if not key[0]}
                self._known.clear()
            self._pooled[key] = Rates(POOLED_MEMORY)
        return self._pooled[key]

    def survival(self, request_id: int, namespace: str, level: int, length: int) -> list[float]:
        """Probability that the first 1, 2, … tokens of the next draft of a request are all accepted, as
        far as that is not negligible."""
        known, own = self._pooled_rates(namespace, level, length), self._requests.get(request_id)
        if own is None:
            rates: Iterable[float] = known[:length]
        else:
            rates = own.blended(known, POOLED_WEIGHT, length)
        return [*takewhile(NEGLIGIBLE.__lt__, accumulate(rates, mul))]

    def _pooled_rates(self, namespace: str, level: int, length: int) -> list[float]:
        """Conditional rates over all requests, of at least so many positions."""
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
        """Take in a draft."""
        for name in {"", namespace}:
            pooled = self.pooled(name, level)
            pooled.observe(planned, accepted)
            if pooled.planned < FEW or pooled.planned % FEW == 0:
                self._known.pop((name, level), None)
        if request_id not in self._requests:
            self._requests[request_id] = Rates(REQUEST_MEMORY)
        self._requests[request_id].observe(planned, accepted)

    def fade(self, request_id: int) -> None:
        """Note that some rounds of a request have shown nothing."""
        own = self._requests.get(request_id)
        if own is not None:
            own.fade(UNSEEN_MEMORY)

    def release(self, request_id: int) -> None:
        """Forget a request; what it has shown of all of them stays."""
        self._requests.pop(request_id, None)

    def as_dict(self) -> dict[str, Any]:
        """What was seen of all requests, ready for JSON."""
        return {
            str(level): rates.as_lists()
            for (namespace, level), rates in self._pooled.items()
            if not namespace
        }

    def restore(self, values: Any) -> None:
        """Begin with what `as_dict` has given."""
        for level, lists in dict(values).items():
            self.pooled("", int(level)).restore(lists)


LEVELS = 8


def level_of(confidence: float) -> int:
    """A drafter's confidence in [0, 1] in steps of an eighth."""
    return int(confidence * LEVELS)


def level_rate(level: int) -> float:
    """What a level says where nothing was seen: drafters tend to be too sure of themselves."""
    return 0.8 * (level + 0.5) / (LEVELS + 1)
