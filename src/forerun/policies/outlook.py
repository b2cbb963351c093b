"""Requests as policy `auto` sees them: their expected lengths, the drafts offered to them, and tries."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from forerun.core import Draft, PlainReason, Plan, Request, Verdict
from forerun.policies.beliefs import Beliefs, Member
from forerun.policies.budget import Trials
from forerun.policies.costs import DraftTimes
from forerun.policies.lengths import Offer

# Tokens of a request from which on it is long.
FIRST_TOKENS = 128
# A try has TRY_LENGTH tokens, or as few as cost at most TRY_COST plain rounds. If it costs more than
# DEAREST_TRY, it waits until the share of time that may be lost has reached its cost.
TRY_LENGTH, TRY_COST, DEAREST_TRY, TRY_ROUNDS = 3, 0.5, 4.0, 3
# Drafts of a drafter that must be seen before they may cost more than a request may lose.
PROVEN = 8
# Number of rounds left for a request without a limit.
MANY = 1 << 30
# Assumed length of an output before any has ended, and the step with which it follows observed lengths.
USUAL_OUTPUT, OUTPUT_STEP = 64, 0.2
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


class Choice(NamedTuple):
    """A plan for a request: an offer, the number of its tokens, and whether it is a try."""

    offer: Offer
    length: int
    is_try: bool = False


@dataclass(slots=True)
class Text:
    """Knowledge about one request.

    Args:
        choice: choice of the running round; None is a plain round.
        reason: reason for a plain round.
        drafts: number of drafts made for it.
        debt: draft prefill not yet charged, in plain rounds.
    """

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


class Outlook:
    """Expected output lengths, offers, and limits of losses of requests.

    Args:
        beliefs: beliefs about costs and drafters.
        most: most tokens of a draft along a path.
        lost_time: share of all time that may be lost.
    """

    def __init__(self, beliefs: Beliefs, most: int, lost_time: float) -> None:
        self._beliefs, self._most, self._lost_time = beliefs, most, lost_time
        # Mean tokens of an output.
        self._mean_output = float(USUAL_OUTPUT)

    def new_text(self, request: Request) -> Text:
        """The state of a new request, whose drafts may lose a share of its time, prompt included."""
        curve = self._beliefs.costs.curve(1)
        prompt = request.num_prompt_tokens * curve.last_slope / curve.plain
        if request.speculative:
            self._beliefs.account.grant(self.tokens_left(request) + prompt)
        return Text()

    def offers(self, request: Request, text: Text, round_: int) -> list[Offer]:
        """The drafts that members could make for a request; members that found nothing are left out."""
        most, limit = request.params.max_tokens, self._most
        if most is not None:
            limit = min(limit, most - request.num_output_tokens - 1)
        if limit < 1 or not request.speculative:
            text.reason = PlainReason.SHORT if request.speculative else PlainReason.ASKED
            return []
        offers = []
        for member in self._beliefs.members:
            level = member.level(request)
            if level is None:
                continue
            offers.append(text.offer(member, request, level, limit, round_))
        if not offers:
            text.reason = PlainReason.NOTHING_FOUND
        return offers

    def price(self, request: Request, offers: Sequence[Offer], batch_size: int) -> None:
        """Set the expected times of the drafts offered to a request."""
        costs = self._beliefs.costs
        for offer in offers:
            member = offer.member
            share = member.share = member.drafter.cost_share(request)
            scale = None if share is None else share * costs.plain_seconds(batch_size)
            offer.times = costs.draft(member.name, member.looks_up, batch_size, scale)
            offer.scale = 1.0 if scale is None else scale
            offer.pending = 0 if member.looks_up else member.drafter.pending(request)
            offer.seconds = 0.0
            if offer.pending > 1:
                # Spread over the rounds to come, of about two tokens each.
                whole = costs.prefill_seconds(member.name, offer.pending)
                offer.seconds = whole / max(1.0, 0.5 * self.tokens_left(request))

    def can_pay(self, offer: Offer) -> bool:
        """True if a drafter has proven worth running a prompt, or that time may be lost."""
        if offer.pending < 2 or offer.member.acceptance.evidence >= PROVEN:
            return True
        costs = self._beliefs.costs
        most = self._beliefs.account.credit * costs.plain_seconds(1)
        return costs.prefill_seconds(offer.member.name, offer.pending) <= most

    def try_length(self, request: Request, offer: Offer, batch_size: int) -> int:
        """Number of tokens of a try that may be lost; 0 if none may, or if no acceptance would pay."""
        costs = self._beliefs.costs
        curve, plain = costs.curve(batch_size), costs.plain_seconds(batch_size)
        before = costs.prefill_seconds(offer.member.name, offer.pending) / plain
        most = min(TRY_LENGTH, self._most)
        if request.params.max_tokens is not None:
            most = min(most, request.params.max_tokens - request.num_output_tokens - 1)
        for length in range(most, 0, -1):
            forward = curve.at(length * offer.member.width) - curve.plain
            lost = (offer.times(length) + forward * costs.speed) / plain
            if lost <= TRY_COST or length == 1:
                if offer.member.drafter.cost_share(request) is not None and lost >= length:
                    return 0
                # A long pause pays for its try, whatever the account holds: tries never end.
                if lost + before <= self._lost_time * offer.member.trials.waited:
                    return length
                if lost > DEAREST_TRY:
                    return 0
                return length if lost + before <= self._beliefs.account.credit else 0
        return 0

    def try_rounds(self, request: Request, choice: Choice, batch_size: int) -> int:
        """Number of rounds of a try.

        A model gets several rounds, because the first one runs cold and tells little of costs, but
        fewer if the output is short or drafts are expensive.
        """
        offer, length, _ = choice
        long = self.tokens_left(request) >= FIRST_TOKENS / 2
        cost = offer.times(length) / self._beliefs.costs.plain_seconds(batch_size)
        if not self._beliefs.only_models or not long or cost > DEAREST_TRY:
            return 1
        return min(TRY_ROUNDS if cost <= TRY_COST else 2, self.rounds_left(request, length))

    def try_one(
        self,
        requests: Sequence[Request],
        texts: Sequence[Text],
        offers: Sequence[list[Offer]],
        chosen: Container[Member],
    ) -> tuple[Trials | None, int]:
        """Choose a due try of a drafter that is not expected to pay, for one request.

        Returns:
            The schedule of the drafter that is tried, None if none is, and the rounds of the try.
        """
        for member in {offer.member: None for offer in chain(*offers)}:
            if member in chosen:
                continue
            member.trials.wait()
            if member.trials.rounds_left > 0:
                continue
            every = list(zip(requests, texts, offers, strict=True))
            for request, text, own in sorted(every, key=lambda entry: entry[1].choice is not None):
                for offer in [offer for offer in own if offer.member is member]:
                    if length := self.try_length(request, offer, len(requests)):
                        text.choice = Choice(offer, length, is_try=True)
                        return member.trials, self.try_rounds(request, text.choice, len(requests))
        return None, 0

    def rounds_left(self, request: Request, length: int) -> int:
        """Number of rounds with drafts of this length for which a request surely has room."""
        most = request.params.max_tokens
        return MANY if most is None else (most - request.num_output_tokens) // (length + 1)

    def tokens_left(self, request: Request) -> float:
        """Expected number of tokens to come: by earlier outputs, or half of those already written."""
        written, most = request.num_output_tokens, request.params.max_tokens
        expected = max(self._mean_output - written, 0.5 * written, 4.0)
        return expected if most is None else min(expected, most - written)

    def ended(self, request: Request) -> None:
        """Take in the length of an output."""
        self._mean_output += OUTPUT_STEP * (request.num_output_tokens - self._mean_output)

    def forget(self) -> None:
        """Start afresh."""
        self._mean_output = float(USUAL_OUTPUT)
