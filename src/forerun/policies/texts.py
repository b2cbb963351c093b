"""What policy `auto` knows of its drafters and of the texts that they draft for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from forerun.contracts import Drafter
from forerun.core import PlainReason, Request
from forerun.policies.acceptance import Acceptance, level_of
from forerun.policies.costs import DraftTimes
from forerun.policies.lengths import Offer

# What is accepted of a model's drafts before any was seen, and rounds that a trained head's own figures
# count as.
UNKNOWN_RATE, MEASURED_WEIGHT = 0.3, 8.0
# The next try comes so many rounds after one that has failed, twice as many after each further one.
FIRST_PAUSE, LONGEST_PAUSE = 4, 64
# How quickly the width of drafts follows that of the last ones.
WIDTH_STEP = 0.05
# What was expected of a draft is worked out again after so many rounds, or when it drafts.
OFFER_ROUNDS = 8
_NO_TIMES = DraftTimes(0.0, 0.0)


class Member:
    """One of the drafters that can be chosen.

    Args:
        place: among the drafter's members.
        drafter: itself.
    """

    def __init__(self, place: int, drafter: Drafter) -> None:
        self.place, self.drafter = place, drafter
        self.name, self.looks_up = drafter.name, drafter.looks_up
        # Nodes of a draft for each planned level: fewer where too little is found, more in trees.
        self.width = 1.0
        if drafter.acceptance:
            measured = [ranks[0] for ranks in drafter.acceptance]
            self.acceptance = Acceptance(measured, MEASURED_WEIGHT)
        else:
            self.acceptance = Acceptance(None if self.looks_up else [UNKNOWN_RATE])

    @property
    def was_tried(self) -> bool:
        """Whether anything is known of its drafts."""
        return self.acceptance.is_known

    def level(self, request: Request) -> int | None:
        """How confident it is; None where it has found nothing. What makes its tokens always has some."""
        if not self.looks_up:
            return 0
        confidence = self.drafter.confidence(request)
        return level_of(confidence) if confidence > 0.0 else None

    def observe(
        self, request: Request, level: int, planned: int, accepted: int, nodes: int
    ) -> None:
        """Take in a draft of so many nodes."""
        self.acceptance.observe(
            request.request_id, request.hints.namespace, level, planned, accepted
        )
        self.width += WIDTH_STEP * (nodes / planned - self.width)


class Choice(NamedTuple):
    """What is planned for a request: an offer, as many tokens of it, and whether it is unproven."""

    offer: Offer
    length: int
    is_try: bool = False


@dataclass(slots=True)
class Text:
    """What is known of one request.

    Args:
        choice: of the round that runs; None is a plain one.
        reason: why that is so, where it is.
        round: of its rounds.
        debt: plain rounds' time that its prompt has taken in drafters' caches and that is to be borne by
            rounds to come.
    """

    choice: Choice | None = None
    reason: PlainReason = PlainReason.PAUSED
    round: int = 0
    debt: float = 0.0
    _offers: dict[Member, tuple[int, int, int, Offer]] = field(default_factory=dict)
    _pauses: dict[Member, tuple[int, int]] = field(default_factory=dict)

    def offer(self, member: Member, request: Request, level: int, limit: int) -> Offer:
        """What a member could draft, `limit` tokens at most."""
        known = self._offers.get(member)
        if known is not None and known[0] == level and known[1] == limit and self.round < known[2]:
            return known[3]
        if known is not None:
            member.acceptance.fade(request.request_id)
        survival = member.acceptance.survival(
            request.request_id, request.hints.namespace, level, limit
        )
        offer = Offer(member, survival, level, _NO_TIMES)
        self._offers[member] = (level, limit, self.round + OFFER_ROUNDS, offer)
        return offer

    def forget_offer(self, offer: Offer) -> None:
        """Note that more is known of a member's drafts now."""
        self._offers.pop(offer.member, None)

    def resume(self, member: Member) -> int:
        """The round from which on a member may be tried."""
        return self._pauses[member][0] if member in self._pauses else 0

    def wait(self, member: Member) -> None:
        """Let some rounds pass before a member is considered again."""
        pause = self._pauses[member][1] if member in self._pauses else FIRST_PAUSE
        self._pauses[member] = (self.round + OFFER_ROUNDS, pause)

    def learn_try(self, member: Member, paid: bool) -> None:
        """Set when the next try of a member comes."""
        pause = self._pauses[member][1] if member in self._pauses else FIRST_PAUSE
        self._pauses[member] = (
            (0, FIRST_PAUSE) if paid else (self.round + pause, min(2 * pause, LONGEST_PAUSE))
        )
