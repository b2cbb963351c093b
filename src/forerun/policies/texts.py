"""Knowledge of policy `auto` about its drafters and about the requests that they draft for."""

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

# Acceptance rate of an ordinary draft model, and the rounds that it counts as before any was seen; the rounds
# that a trained head's own figures count as.
ORDINARY_RATE, ORDINARY_WEIGHT, MEASURED_WEIGHT = 0.7, 3.0, 8.0
# Step with which the width of drafts follows observed widths.
WIDTH_STEP = 0.05
# Expected acceptance is updated after OFFER_ROUNDS rounds, after each of a request's FIRST_DRAFTS drafts, and
# in every DRAFT_ROUNDS-th round in which it drafts.
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
        place: index among the drafter's members.
        drafter: the drafter itself.
    """

    def __init__(self, place: int, drafter: Drafter) -> None:
        self.place, self.drafter = place, drafter
        self.name, self.looks_up = drafter.name, drafter.looks_up
        self.forget()

    def forget(self) -> None:
        """Start afresh."""
        # Nodes of a draft per planned level: fewer than one if too little is found, more in trees.
        self.width = 1.0
        # Plain rounds that a token takes, by the drafter's own statement.
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
        """Level of the drafter's confidence; None if nothing was found.

        A model always finds tokens and has level 0.
        """
        if not self.looks_up:
            return 0
        confidence = self.drafter.confidence(request)
        return level_of(confidence) if confidence > 0.0 else None

    def observe(
        self, request: Request, level: int, planned: int, accepted: int, nodes: int
    ) -> None:
        """Take in a draft of `nodes` nodes."""
        self.acceptance.observe(
            request.request_id, request.hints.namespace, level, planned, accepted
        )
        self.width += WIDTH_STEP * (nodes / planned - self.width)
        self.rounds += 1
        self.drafted += nodes
        self.accepted += accepted

    @property
    def is_given_up(self) -> bool:
        """True if the drafter was tried in vain, or waits for a try that cannot be paid for."""
        return self.trials.is_given_up and self.acceptance.evidence > 0

    def given_up(self, cost: float) -> str:
        """One sentence on why the drafter was given up.

        Args:
            cost: cost of a token of its drafts, in plain rounds.
        """
        seen = f"after {self.rounds} rounds ({self.accepted} of {self.drafted} drafted tokens accepted)"
        return (
            f"{self.name} was given up {seen if self.rounds else 'in an earlier run'}: a drafted token takes "
            f"{cost:.2f} of a plain round, more than it brings; it is tried again now and then, and --policy "
            "fixed drafts on"
        )

    @property
    def learned(self) -> dict[str, Any]:
        """Acceptance and tries, ready for JSON."""
        return {"acceptance": self.acceptance.as_dict(), "trials": self.trials.learned}

    def restore(self, learned: Any) -> None:
        """Start from the values that `learned` returned."""
        self.acceptance.restore(learned["acceptance"])
        self.trials.restore(learned["trials"])


class Choice(NamedTuple):
    """A plan for a request: an offer, the number of its tokens, and whether it is a try."""

    offer: Offer
    length: int
    is_try: bool = False


@dataclass(slots=True)
class Text:
    """Knowledge about one request.

    Args:
        account: time that its drafts may lose.
        choice: choice of the running round; None is a plain round.
        reason: reason for a plain round.
        drafts: number of drafts made for it.
        debt: draft prefill not yet charged, in plain rounds.
    """

    account: Account
    choice: Choice | None = None
    reason: PlainReason = PlainReason.PAUSED
    drafts: int = 0
    debt: float = 0.0
    _offers: dict[tuple[Member, int], tuple[int, int, Offer]] = field(default_factory=dict)

    def plan(self, several: bool) -> Plan:
        """The plan of the choice; it names the member if there are several."""
        if self.choice is None:
            return _PLAIN[self.reason]
        offer, length, _ = self.choice
        return Plan(length, member=offer.member.place if several else None)

    def offer(self, member: Member, request: Request, level: int, limit: int, round_: int) -> Offer:
        """The draft that a member could make in a round, with at most `limit` tokens."""
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
        """Take in a chosen draft.

        Only after the last round of a stretch is the request's length the one after this draft, so
        that the end of the output can be taken into account.
        """
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
        """Have expected acceptance computed again."""
        self._offers.clear()

    def pay_debt(self, rounds: int, gain: float, tokens_left: float) -> float:
        """The share of the debt that is due after some rounds; gains first pay for a prompt."""
        share = self.debt * min(1.0, 2.0 * rounds / max(tokens_left, 1.0))
        due = max(share, min(self.debt, gain))
        self.debt -= due
        return due

    def in_words(self) -> str:
        """The decision for the round, and its reason."""
        if self.choice is None:
            return _IN_WORDS[self.reason]
        offer, length, is_try = self.choice
        expected = sum(offer.survival[:length])
        if is_try:
            return f"{offer.member.name}, {length} tokens, to see what is accepted ({expected:.2f} expected)"
        return f"{offer.member.name}, {length} tokens, of which {expected:.2f} are expected to be accepted"
