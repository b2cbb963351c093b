"""What the drafters' offers are worth, and the best of them: time is valued at the rate that is expected."""

from __future__ import annotations

from forerun.policies.beliefs import Beliefs
from forerun.policies.lengths import Lengths, Offer, best_lengths

# How quickly the rate follows that of what is planned: where models draft, and where texts are looked up in.
STEADY_STEP, LOOKUP_STEP = 0.5, 0.05


class Valuation:
    """Values offers by what is believed.

    Args:
        beliefs: of costs and drafters.
    """

    def __init__(self, beliefs: Beliefs) -> None:
        self._beliefs = beliefs
        # Tokens a second that are expected of rounds, by batch size, over those of plain ones.
        self._gains: dict[int, float] = {}
        self._last: tuple[int, list[Offer], Lengths | None] = (0, [], None)

    def forget(self) -> None:
        """Begin anew."""
        self._gains.clear()
        self._last = 0, [], None

    def best(self, offers: list[Offer], batch_size: int, credit: float) -> Lengths | None:
        """The best lengths for offers, as in the last round where they are the same; None where plain
        decoding is.

        Args:
            offers: one a request.
            batch_size: requests, those without an offer among them.
            credit: plain rounds' time that may be lost.
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
                # A model drafts in every round: a rate that it does not reach any more is no way to spend
                # the time better.
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
        """The offer of several to one request that is worth most, if all of the batch had the same."""
        if len(offers) == 1:
            return offers[0]
        costs = self._beliefs.costs
        curve, speed, values = costs.curve(batch_size), costs.speed, list[float]()
        rate = self._gains.get(batch_size, 1.0) * batch_size / (curve.plain * speed)
        for offer in offers:
            found = best_lengths([offer] * batch_size, rate, curve, speed)
            values.append(0.0 if found is None else found.tokens - rate * found.seconds)
        return offers[values.index(max(values))]
