"""Values of the drafters' offers, and the best of them; time is valued at the expected rate of tokens."""

from __future__ import annotations

from forerun.policies.beliefs import Beliefs
from forerun.policies.lengths import Lengths, Offer, best_lengths

# Step with which the rate follows that of the plans: if models draft, and if tokens are looked up.
STEADY_STEP, LOOKUP_STEP = 0.5, 0.05


class Valuation:
    """Values offers by the current beliefs.

    Args:
        beliefs: beliefs about costs and drafters.
    """

    def __init__(self, beliefs: Beliefs) -> None:
        self._beliefs = beliefs
        # Expected tokens per second of rounds relative to plain ones, by batch size.
        self._gains: dict[int, float] = {}
        self._last: tuple[int, list[Offer], Lengths | None] = (0, [], None)

    def forget(self) -> None:
        """Start afresh."""
        self._gains.clear()
        self._last = 0, [], None

    def best(self, offers: list[Offer], batch_size: int, credit: float) -> Lengths | None:
        """The best lengths for offers; None if plain decoding is better.

        If the offers are those of the last round, so is the result.

        Args:
            offers: one per request.
            batch_size: number of requests, including those without an offer.
            credit: plain rounds that may be lost.
        """
        costs = self._beliefs.costs
        curve, speed = costs.curve(batch_size), costs.speed
        plain, gain = curve.plain * speed, self._gains.get(batch_size, 1.0)
        size, same, found = self._last
        if not offers:
            found = None
        elif (
            size != batch_size
            or offers != same
            or (found is not None and found.seconds > credit * plain)
        ):
            for value in (gain, 1.0):
                found = best_lengths(
                    offers, value * batch_size / plain, curve, speed, credit * plain
                )
                # A model drafts in every round: if it no longer reaches the rate, the time cannot be spent
                # better either, so it is compared with plain decoding.
                if found is not None or not self._beliefs.only_models:
                    break
            self._last = batch_size, offers, found
        now = 1.0
        if found is not None:
            now = max((1.0 + found.tokens / batch_size) / (1.0 + found.seconds / plain), 1.0)
        step = STEADY_STEP if self._beliefs.only_models else LOOKUP_STEP
        self._gains[batch_size] = gain + step * (now - gain)
        return found

    def better(self, offers: list[Offer], batch_size: int) -> Offer:
        """The most valuable of several offers to one request, if the whole batch had the same."""
        if len(offers) == 1:
            return offers[0]
        costs = self._beliefs.costs
        curve, speed, values = costs.curve(batch_size), costs.speed, list[float]()
        rate = self._gains.get(batch_size, 1.0) * batch_size / (curve.plain * speed)
        for offer in offers:
            found = best_lengths([offer] * batch_size, rate, curve, speed)
            values.append(0.0 if found is None else found.tokens - rate * found.seconds)
        return offers[values.index(max(values))]
