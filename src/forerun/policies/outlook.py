"""Expectations for each request: the drafts that members could make, and the time that they may lose."""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import chain

from forerun.core import PlainReason, Request
from forerun.policies.account import Account
from forerun.policies.beliefs import Beliefs
from forerun.policies.lengths import Offer
from forerun.policies.texts import Choice, Member, Text
from forerun.policies.trials import Trials

# Budget for learning: TUITION is the share of the first request's time, which counts FIRST_TOKENS tokens at
# least; a request near its end may lose LEAST_TUITION of a plain round.
TUITION, FIRST_TOKENS, LEAST_TUITION = 0.03, 128, 0.2
# A try has TRY_LENGTH tokens, or as few as cost at most TRY_COST plain rounds. If it costs more than
# DEAREST_TRY, the account must hold only that much, but the try waits until the share of time that may be
# lost has reached its cost.
TRY_LENGTH, TRY_COST, DEAREST_TRY, TRY_ROUNDS = 3, 0.5, 4.0, 3
# Share of the account that a round may risk, and plain rounds that it may risk however little is left; with
# an unproven drafter, UNPROVEN_RISK.
RISKED, LEAST_RISK, UNPROVEN_RISK = 0.3, 0.5, 0.35
# Drafts of a drafter that must be seen before they may cost more than a request may lose.
PROVEN = 8
# Number of rounds left for a request without a limit.
MANY = 1 << 30
# Assumed length of an output before any has ended, and the step with which it follows observed lengths.
USUAL_OUTPUT, OUTPUT_STEP = 64, 0.2


class Outlook:
    """Expected output lengths, offers, and limits of losses of requests.

    Args:
        beliefs: beliefs about costs and drafters.
        most: most tokens of a draft along a path.
        lost_time: share of all time that may be lost.
    """

    def __init__(self, beliefs: Beliefs, most: int, lost_time: float) -> None:
        self._beliefs, self._most, self._lost_time = beliefs, most, lost_time
        # Mean tokens of an output, and whether the learning budget for a first prompt was credited.
        self._mean_output, self._is_granted = float(USUAL_OUTPUT), False

    def new_text(self, request: Request) -> Text:
        """The state of a new request; its drafts may lose a share of its time, prompt included."""
        curve = self._beliefs.costs.curve(1)
        prompt = request.num_prompt_tokens * curve.last_slope / curve.plain
        known = any(member.acceptance.evidence for member in self._beliefs.members)
        if request.speculative and not known and not self._is_granted:
            self._is_granted = True
            self._beliefs.account.credit += TUITION * prompt
        first = TUITION * (self.tokens_left(request) + prompt)
        self._beliefs.account.draw(first)
        self._beliefs.account.advance(self.tokens_left(request) + prompt)
        return Text(Account(self._lost_time, max(first, LEAST_TUITION)))

    def may_lose(self, texts: Sequence[Text]) -> float:
        """Plain rounds that drafts of this round may lose.

        Before any drafter is proven, it is at most what the requests themselves may lose.
        """
        credit = self._beliefs.account.credit
        most = max(RISKED * credit, min(credit, LEAST_RISK))
        if any(member.acceptance.evidence >= PROVEN for member in self._beliefs.members):
            return most
        left = max(text.account.credit for text in texts)
        return min(most, max(left, UNPROVEN_RISK)) if left > 0.0 else 0.0

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

    def can_pay(self, offer: Offer, text: Text) -> bool:
        """True if a drafter has proven worth running a prompt, or the request may lose that time."""
        if offer.pending < 2 or offer.member.acceptance.evidence >= PROVEN:
            return True
        costs = self._beliefs.costs
        most = min(text.account.credit, self._beliefs.account.credit) * costs.plain_seconds(1)
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
                least = min(lost, DEAREST_TRY) + before
                if lost > DEAREST_TRY and lost > self._lost_time * offer.member.trials.waited:
                    return 0
                return length if least <= self._beliefs.account.credit else 0
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
        self._mean_output, self._is_granted = float(USUAL_OUTPUT), False
