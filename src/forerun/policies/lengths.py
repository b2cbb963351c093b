"""The draft lengths that bring the most tokens a second."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, NamedTuple

from forerun.policies.costs import Curve, DraftTimes

if TYPE_CHECKING:
    from forerun.policies.beliefs import Member

# Least gain that drafts must promise, in tokens a request and relative to their time; less is noise.
LEAST_GAIN, LEAST_RATIO = 0.02, 1.05


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
        rate: most tokens a second, if the whole batch had the same; None before it was asked for.
    """

    member: Member
    survival: list[float]
    level: int
    times: DraftTimes
    pending: int = 0
    seconds: float = 0.0
    scale: float = 1.0
    rate: float | None = None


class Lengths(NamedTuple):
    """A length for each offer, their tokens and seconds beyond a plain round, and all tokens a second."""

    lengths: list[int]
    tokens: float
    seconds: float
    rate: float


def best_lengths(
    offers: Sequence[Offer], curve: Curve, speed: float, most_seconds: float = math.inf
) -> Lengths | None:
    """Lengths with the most tokens a second for some offers; None if plain decoding is better.

    Tokens are added by falling probability of acceptance.

    Args:
        offers: one offer per request.
        curve: curve of rounds of this batch size.
        speed: seconds per second of the curve.
        most_seconds: most seconds added to a plain round, which are lost if nothing is accepted.
    """
    entries = [(-offer.survival[0], index) for index, offer in enumerate(offers) if offer.survival]
    heapify(entries)
    rises, last, size = curve.rises, len(curve.rises) - 1, curve.batch_size
    plain, price, entry = speed * curve.plain, speed * curve.slope, speed * curve.entry
    narrowest = min(offer.member.width for offer in offers)
    levels, order = [0] * len(offers), list[int]()
    # A drafter drafts for greedy and sampled requests at once.
    depths: dict[str, int] = {}
    tokens = drafting = extra = 0.0
    rate, chosen, at_best = size / plain, 0, (0.0, 0.0)
    while entries:
        negative, index = entries[0]
        offer, level, member = offers[index], levels[index], offers[index].member
        # No later token is worth its least cost.
        spot = min(int(extra + 0.5), last)
        if -negative < rate * narrowest * price * curve.floors[spot]:
            break
        tokens -= negative
        extra += member.width
        levels[index] = level + 1
        order.append(index)
        drafting += 0.0 if level else offer.seconds
        if level == depths.get(member.name, 0):
            depths[member.name] = level + 1
            drafting += offer.times.per_token if level else offer.times.first
        spot = int(extra + 0.5)
        rise = rises[spot] if spot < last else curve.rise(extra)
        seconds = drafting + price * rise + min(extra, 1.0) * entry
        if seconds > most_seconds:
            break
        if size + tokens > rate * (plain + seconds):
            rate, chosen, at_best = (
                (size + tokens) / (plain + seconds),
                len(order),
                (tokens, seconds),
            )
        if len(offer.survival) > level + 1:
            heapreplace(entries, (-offer.survival[level + 1], index))
        else:
            heappop(entries)
    tokens, seconds = at_best
    if tokens <= LEAST_GAIN * size or tokens < LEAST_RATIO * size / plain * seconds:
        return None
    lengths = [0] * len(offers)
    for index in order[:chosen]:
        lengths[index] += 1
    return Lengths(lengths, tokens, seconds, rate)
