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
# What is expected of a draft is worked out again after so many rounds, and after each of a request's first
# drafts or every fourth round in which it drafts.
OFFER_ROUNDS, FIRST_DRAFTS, DRAFT_ROUNDS = 8, 8, 4
_NO_TIMES = DraftTimes(0.0, 0.0)
_IN_WORDS = {
    PlainReason.PAUSED: "plain: no draft is expected to pay",
    PlainReason.TIMED: "plain, to time such a round",
    PlainReason.NOTHING_FOUND: "plain: nothing was found to propose",
    PlainReason.SHORT: "plain: one token is left",
    PlainReason.ASKED: "plain, as was asked for",
}


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
        drafts: that were made for it.
        debt: plain rounds' time that its prompt has taken in drafters' caches and that is to be borne by
            rounds to come.
    """

    choice: Choice | None = None
    reason: PlainReason = PlainReason.PAUSED
    round: int = 0
    drafts: int = 0
    debt: float = 0.0
    _offers: dict[tuple[Member, int], tuple[int, int, Offer]] = field(default_factory=dict)
    _pauses: dict[Member, tuple[int, int]] = field(default_factory=dict)

    def offer(self, member: Member, request: Request, level: int, limit: int) -> Offer:
        """What a member could draft, `limit` tokens at most."""
        key = (member, level)
        known = self._offers.get(key)
        if known is not None:
            if known[0] == limit and self.round < known[1]:
                return known[2]
            member.acceptance.fade(request.request_id)
        survival = member.acceptance.survival(
            request.request_id, request.hints.namespace, level, limit
        )
        offer = Offer(member, survival, level, _NO_TIMES)
        self._offers[key] = (limit, self.round + OFFER_ROUNDS, offer)
        return offer

    def learn_draft(self, rounds: int) -> None:
        """Note that more is known of its drafts now, after so many rounds of all requests."""
        self.drafts += 1
        if self.drafts <= FIRST_DRAFTS or rounds % DRAFT_ROUNDS == 0:
            self._offers.clear()

    def in_words(self) -> str:
        """What was decided for the round, and why."""
        if self.choice is None:
            return _IN_WORDS[self.reason]
        offer, length, is_try = self.choice
        expected = sum(offer.survival[:length])
        if is_try:
            return f"{offer.member.name}, {length} tokens, to see what is accepted ({expected:.2f} expected)"
        return f"{offer.member.name}, {length} tokens, of which {expected:.2f} are expected to be accepted"

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
