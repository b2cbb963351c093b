"""The draft lengths that make the best use of a round's time, valued at the expected rate of tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, NamedTuple

from forerun.policies.costs import Curve, DraftTimes

if TYPE_CHECKING:
    from forerun.policies.beliefs import Beliefs, Member

# Least gain that drafts must promise, in tokens and relative to the value of their time; less is noise.
LEAST_GAIN, LEAST_RATIO = 0.02, 1.05
# Value of a token if only some requests of a batch draft: these requests leave the batch sooner, the rest
# runs at a worse rate, and the prompts that follow come one by one.
ALONE = 0.5
# Steps with which the expected rate of tokens follows that of the plans: if models draft, and for lookups.
STEADY_STEP, LOOKUP_STEP = 0.5, 0.05


@dataclass(slots=True, eq=False)
class Offer:
    """A draft that a member could make for a request, with its expected acceptance and costs.

    Args:
        member: the drafter.
        survival: probability that the first 1, 2, … tokens are all accepted, as far as it matters.
        level: level of its confidence.
        times: times of its drafts.
        pending: tokens that it would have to run first.
        seconds: this round's share of the time for those tokens.
        scale: unit of the draft's time: for drafters that know the bytes that they read, the
            seconds of a token by these bytes; otherwise one second.
        is_declined: it was found not to pay.
    """

    member: Member
    survival: list[float]
    level: int
    times: DraftTimes
    pending: int = 0
    seconds: float = 0.0
    scale: float = 1.0
    is_declined: bool = False


class Lengths(NamedTuple):
    """A length for each offer, and their expected tokens, by worth, and seconds beyond a plain round."""

    lengths: list[int]
    tokens: float
    seconds: float


def best_lengths(
    offers: Sequence[Offer], rate: float, curve: Curve, speed: float, most_seconds: float = math.inf
) -> Lengths | None:
    """The most valuable lengths for some offers, one per request; None if plain decoding is better.

    Tokens are added by falling probability of acceptance. The value of such a set is its tokens less
    those that its time would bring otherwise.

    Args:
        offers: one offer per request.
        rate: tokens per second that come otherwise.
        curve: curve of rounds of this batch size.
        speed: seconds per second of the curve.
        most_seconds: most seconds added to a plain round, which are lost if nothing is accepted.
    """
    entries = [(-offer.survival[0], index) for index, offer in enumerate(offers) if offer.survival]
    heapify(entries)
    rises, last = curve.rises, len(curve.rises) - 1
    price, each = speed * curve.slope, speed * curve.token
    narrowest = rate * min([offer.member.width for offer in offers])
    levels, order = [0] * len(offers), list[int]()
    depths: dict[Member, int] = {}
    size, worth, covered = curve.batch_size, 1.0 if curve.batch_size == 1 else ALONE, 0
    tokens = drafting = extra = 0.0
    best, chosen, at_best = LEAST_GAIN * size, 0, (0.0, 0.0)
    while entries:
        negative, index = entries[0]
        offer, level, member = offers[index], levels[index], offers[index].member
        tokens -= negative
        extra += member.width
        levels[index] = level + 1
        order.append(index)
        if level == 0:
            drafting, covered = drafting + offer.seconds, covered + 1
            worth = 1.0 if covered == size else worth
        if level == depths.get(member, 0):
            depths[member] = level + 1
            drafting += offer.times.per_token if level else offer.times.first
        spot = int(extra + 0.5)
        rise = rises[spot] if spot < last else curve.rise(extra)
        seconds = drafting + price * rise + each * extra
        if seconds > most_seconds:
            break
        value = worth * tokens - rate * seconds
        if value > best:
            best, chosen, at_best = value, len(order), (worth * tokens, seconds)
        if len(offer.survival) > level + 1:
            heapreplace(entries, (-offer.survival[level + 1], index))
        else:
            heappop(entries)
        # No later token is worth its least cost, unless it raises the worth of all others.
        least = narrowest * (price * curve.floors[min(spot, last)] + each)
        if (covered == size or len(offers) < size) and entries and -entries[0][0] * worth < least:
            break
    if not chosen or at_best[0] < LEAST_RATIO * rate * at_best[1]:
        return None
    lengths = [0] * len(offers)
    for index in order[:chosen]:
        lengths[index] += 1
    return Lengths(lengths, *at_best)


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
