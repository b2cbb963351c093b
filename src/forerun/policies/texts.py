"""What policy `auto` knows of its drafters and of the texts that they draft for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from forerun.contracts import Drafter
from forerun.core import Draft, PlainReason, Plan, Request, Verdict
from forerun.policies.acceptance import Acceptance, level_of
from forerun.policies.account import Account
from forerun.policies.costs import DraftTimes
from forerun.policies.lengths import Offer
from forerun.policies.trials import Trials

# Acceptance of an ordinary draft model's tokens, and the rounds that it counts as before any was seen; those
# that a trained head's own figures count as.
ORDINARY_RATE, ORDINARY_WEIGHT, MEASURED_WEIGHT = 0.7, 3.0, 8.0
# How quickly the width of drafts follows that of the last ones.
WIDTH_STEP = 0.05
# What is expected of a draft is worked out again after so many rounds, and after each of a request's first
# drafts or every fourth round in which it drafts.
OFFER_ROUNDS, FIRST_DRAFTS, DRAFT_ROUNDS = 8, 8, 4
_NO_TIMES = DraftTimes(0.0, 0.0)
_PLAIN = {reason: Plan(0, reason=reason) for reason in PlainReason}
_IN_WORDS = {
    PlainReason.PAUSED: "plain: no draft is expected to pay",
    PlainReason.TIMED: "plain, to time such a round",
    PlainReason.NOTHING_FOUND: "plain: nothing was found to propose",
    PlainReason.SHORT: "plain: one token is left",
    PlainReason.ASKED: "plain, as was asked for",
    PlainReason.CONTEXT: "plain: the text fills the drafter's context",
    PlainReason.FAILED: "plain: the drafter failed",
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
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        # Nodes of a draft for each planned level: fewer where too little is found, more in trees.
        self.width = 1.0
        # Plain rounds that a token takes, as it says itself.
        self.share: float | None = None
        self.trials = Trials()
        self.rounds = self.drafted = self.accepted = 0
        if self.drafter.acceptance:
            measured = [ranks[0] for ranks in self.drafter.acceptance]
            self.acceptance = Acceptance(measured, MEASURED_WEIGHT)
        elif self.looks_up:
            self.acceptance = Acceptance()
        else:
            self.acceptance = Acceptance([ORDINARY_RATE], ORDINARY_WEIGHT)

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
        self.rounds += 1
        self.drafted += nodes
        self.accepted += accepted

    @property
    def is_given_up(self) -> bool:
        """Whether it was tried in vain, or waits for a try that cannot be paid."""
        return self.trials.is_given_up and self.acceptance.evidence > 0

    def given_up(self, cost: float) -> str:
        """Why it drafts no more, in a sentence.

        Args:
            cost: of a token of its drafts, in plain rounds.
        """
        seen = f"after {self.rounds} rounds ({self.accepted} of {self.drafted} drafted tokens accepted)"
        return (
            f"{self.name} was given up {seen if self.rounds else 'in an earlier run'}: a drafted token takes "
            f"{cost:.2f} of a plain round, more than it brings; it is tried again now and then, and --policy "
            "fixed drafts on"
        )

    @property
    def learned(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"acceptance": self.acceptance.as_dict(), "trials": self.trials.learned}

    def restore(self, learned: Any) -> None:
        """Begin with what `learned` has given."""
        self.acceptance.restore(learned["acceptance"])
        self.trials.restore(learned["trials"])


class Choice(NamedTuple):
    """What is planned for a request: an offer, as many tokens of it, and whether it is a try."""

    offer: Offer
    length: int
    is_try: bool = False


@dataclass(slots=True)
class Text:
    """What is known of one request.

    Args:
        account: what drafts for it may lose.
        choice: of the round that runs; None is a plain one.
        reason: why that is so, where it is.
        drafts: that were made for it.
        debt: time of the drafters' caches for its prompt, in plain rounds, that is not yet charged.
    """

    account: Account
    choice: Choice | None = None
    reason: PlainReason = PlainReason.PAUSED
    drafts: int = 0
    debt: float = 0.0
    _offers: dict[tuple[Member, int], tuple[int, int, Offer]] = field(default_factory=dict)

    def plan(self, several: bool) -> Plan:
        """What was chosen, of several members or of the drafter itself."""
        if self.choice is None:
            return _PLAIN[self.reason]
        offer, length, _ = self.choice
        return Plan(length, member=offer.member.place if several else None)

    def offer(self, member: Member, request: Request, level: int, limit: int, round_: int) -> Offer:
        """What a member could draft in a round, `limit` tokens at most."""
        key = (member, level)
        known = self._offers.get(key)
        if known is not None:
            if known[0] == limit and round_ < known[1]:
                return known[2]
            member.acceptance.fade(request.request_id)
        survival = member.acceptance.survival(
            request.request_id, request.hints.namespace, level, limit
        )
        offer = Offer(member, survival, level, _NO_TIMES)
        self._offers[key] = (limit, round_ + OFFER_ROUNDS, offer)
        return offer

    def learn_draft(self, request: Request, draft: Draft, verdict: Verdict, is_last: bool) -> None:
        """Take in a draft that was chosen; after the last of a stretch the request has the length that it
        says."""
        assert self.choice is not None
        offer, planned, _ = self.choice
        most = request.params.max_tokens
        if most is not None and is_last:
            planned = min(planned, most - request.num_output_tokens + len(verdict.token_ids) - 1)
        if planned < 1:
            return
        offer.member.observe(request, offer.level, planned, verdict.num_accepted, len(draft))
        self.drafts += 1

    def expect_anew(self) -> None:
        """Work out again what is to be expected."""
        self._offers.clear()

    def pay_debt(self, rounds: int, gain: float, tokens_left: float) -> float:
        """The share of the debt that is due after some rounds: gains pay for a prompt first."""
        share = self.debt * min(1.0, 2.0 * rounds / max(tokens_left, 1.0))
        due = max(share, min(self.debt, gain))
        self.debt -= due
        return due

    def in_words(self) -> str:
        """What was decided for the round, and why."""
        if self.choice is None:
            return _IN_WORDS[self.reason]
        offer, length, is_try = self.choice
        expected = sum(offer.survival[:length])
        if is_try:
            return f"{offer.member.name}, {length} tokens, to see what is accepted ({expected:.2f} expected)"
        return f"{offer.member.name}, {length} tokens, of which {expected:.2f} are expected to be accepted"
