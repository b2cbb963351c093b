"""Speculate as far as it pays by measured costs and acceptance, or not at all.

Each round the policy takes the drafters and the lengths that are worth most over the whole batch: tokens
expected, less those that their time would bring otherwise (`policies/lengths.py`). No draft at all is one
of the choices.

What is lost is bounded whatever the estimates say: an account is credited with a share of all time, and
with what drafts have gained up to a limit; what they lose is taken off it. What is unproven is tried
only out of this account, and below zero everything is decoded plainly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from pydantic import Field

from forerun.contracts import CausalLM, Drafter
from forerun.core import Draft, PlainReason, Plan, Request, RoundTimes, Verdict
from forerun.options import options
from forerun.policies.account import Account
from forerun.policies.base import BasePolicy
from forerun.policies.costs import OUTLIER, Curve, LiveCosts
from forerun.policies.decisions import Decisions
from forerun.policies.lengths import Lengths, Offer, best_lengths
from forerun.policies.memory import Memory, recall
from forerun.policies.texts import Choice, Member, Text

logger = logging.getLogger(__name__)

LONGEST = 16
# Something unproven is tried where so many tokens are left to come, or after so many rounds; as many of
# its tokens as that, or as few as cost no more than this share of a plain round.
LEAST_LEFT, ROUNDS_BEFORE, TRY_LENGTH, TRY_COST = 16, 64, 3, 0.5
# The first try of a drafter may take, for its prompt, this share of the rounds that are expected.
FIRST_PREFILL = 0.5
# Tokens that outputs are thought to have before any has ended.
USUAL_OUTPUT = 64
# Where one of several drafters is used, another is tried after so many rounds.
OTHERS_AFTER = 24
# A plain round is timed after so many that drafted.
TIMED_AFTER = 150
# Where nothing pays, it is asked again after so many rounds or when a request comes: if all drafts are a
# model's, and in batches of CROWD, where looking costs each request more than it finds.
REST, CROWD = 4, 4
# How quickly the rate that time is valued at follows that of what is planned.
RATE_STEP = 0.05
_PLAIN = {reason: Plan(0, reason=reason) for reason in PlainReason}


@options
class CostAwareOptions:
    """What policy `auto` may lose, and whether it measures first."""

    lost_time: float = Field(
        default=0.02,
        ge=0.0,
        le=1.0,
        description="Share of all time that may be lost in trying out drafts.",
    )
    calibrate: bool = Field(
        default=True,
        description="Time forwards of the model when it is first loaded, and keep what was measured and "
        "learned on disk.",
    )
    log_decisions: bool = Field(default=False, description="Log every decision and its reason.")


class CostAwarePolicy(BasePolicy):
    """Plans what is worth most: which drafter, how far, or none.

    Args:
        num_speculative_tokens: tokens along a path at most; None is `LONGEST`.
        options: its own.
    """

    name = "auto"
    options = CostAwareOptions

    def __init__(
        self, num_speculative_tokens: int | None = None, options: CostAwareOptions | None = None
    ) -> None:
        self.settings = options or CostAwareOptions()
        self.costs = LiveCosts(most=num_speculative_tokens or LONGEST)
        self.decisions = Decisions()
        self._most = num_speculative_tokens or LONGEST
        self._account = Account(self.settings.lost_time)
        self._members: list[Member] = []
        self._several = False
        self._texts: dict[int, Text] = {}
        # Tokens a second that are expected of rounds, by batch size, over those of plain ones.
        self._gains: dict[int, float] = {}
        self._drafted_since_plain, self._mean_output = 0, float(USUAL_OUTPUT)
        self.clock: Callable[[], float] = perf_counter
        self._planning, self._rounds, self._rest_until, self._rests = 0.0, 0, 0, False
        self._last: tuple[list[Offer], Lengths | None] = ([], None)
        self._memory: Memory | None = None

    def attach(self, target: CausalLM, drafter: Drafter, rows: int) -> None:
        """Receive what it plans for; forwards of the target are timed where that was never done."""
        self._several = bool(drafter.members)
        self._members = [
            Member(place, member) for place, member in enumerate(drafter.members or (drafter,))
        ]
        # What a lookup finds may be there in any round; what is known of a model changes by its drafts.
        self._rests = not any(member.looks_up for member in self._members)
        if self.settings.calibrate:
            self._memory = recall(target, drafter, rows)
            self.costs = LiveCosts(self._memory.table, self._most)
            self._memory.hand_over(self)

    @property
    def learned(self) -> dict[str, Any]:
        """Costs of drafts and acceptance by member, ready for JSON."""
        accepted = {member.name: member.acceptance.as_dict() for member in self._members}
        return {"drafts": self.costs.as_dict(), "acceptance": accepted}

    def restore(self, learned: Any) -> None:
        """Begin with what `learned` has given."""
        self.costs.restore(learned["drafts"])
        for member in self._members:
            member.acceptance.restore(learned["acceptance"].get(member.name, {}))

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        started = self.clock()
        timed = self._drafted_since_plain >= TIMED_AFTER or not self.costs.is_known
        known = len(self._texts)
        texts = [self._text(request) for request in requests]
        reason = PlainReason.TIMED if timed else PlainReason.PAUSED
        for text in texts:
            text.round += 1
            text.choice, text.reason = None, reason
        if not timed and (self._rounds >= self._rest_until or len(self._texts) > known):
            self._choose(requests, texts)
            rests = self._rests or len(requests) >= CROWD
            if rests and all(text.choice is None for text in texts):
                self._rest_until = self._rounds + REST
        plans = [self._plan_of(text) for text in texts]
        self._planning = self.clock() - started
        if self.settings.log_decisions:
            for request, text in zip(requests, texts, strict=True):
                words = self._in_words(text)
                logger.info("request %d: %s", request.request_id, words)
        return plans

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        times: RoundTimes,
    ) -> None:
        batch_size, extra, emitted = len(requests), 0, 0
        self._rounds += 1
        made: list[tuple[Text, Choice, Draft, int]] = []
        texts = [self._text(request) for request in requests]
        for request, text, draft, verdict in zip(requests, texts, drafts, verdicts, strict=True):
            extra += len(draft)
            emitted += len(verdict.token_ids)
            if text.choice is not None and verdict.token_ids:
                made.append((text, text.choice, draft, verdict.num_accepted))
                self._learn_acceptance(request, text, text.choice, draft, verdict)
        self.costs.observe(batch_size, extra, times.target + times.verify)
        plain = seconds = self.costs.plain_seconds(batch_size)
        if made:
            # As it was measured, but for what an interruption may have added.
            expected = self.costs.curve(batch_size).at(extra) * self.costs.speed
            seconds = min(times.target + times.verify, OUTLIER * expected)
            drafting, before = self._learn_times(
                batch_size, made, max(times.draft - self._planning, 0.0)
            )
            seconds += drafting
            made[0][0].debt += before / plain
            for text, choice, _, accepted in made:
                if choice.is_try:
                    lost = (seconds - plain) / plain / len(made)
                    text.learn_try(choice.offer.member, paid=accepted > lost)
        self._drafted_since_plain = self._drafted_since_plain + 1 if extra else 0
        self._account.settle(emitted / batch_size, seconds / plain, self._planning / plain)
        plain_requests = batch_size
        for request, text in zip(requests, texts, strict=True):
            if text.choice is not None:
                plain_requests -= 1
                member, length = text.choice.offer.member, text.choice.length
                self.decisions.count(member.name, length, 1, batch_size, emitted, seconds, plain)
            if text.debt:
                # What drafts gain pays for their prompt first.
                share = text.debt * min(1.0, 2.0 / max(self._tokens_left(request), 1.0))
                due = max(share, min(text.debt, emitted / batch_size - seconds / plain))
                text.debt -= due
                self._account.charge(due / batch_size)
        if plain_requests:
            self.decisions.count("", 0, plain_requests, batch_size, emitted, seconds, plain)

    def release(self, request: Request) -> None:
        text = self._texts.pop(request.request_id, None)
        if text is None:
            return
        self._account.charge(text.debt)
        for member in self._members:
            member.acceptance.release(request.request_id)
        self._mean_output += 0.2 * (request.num_output_tokens - self._mean_output)
        if self._memory is not None:
            self._memory.note()

    def report(self) -> dict[str, Any]:
        return self.decisions.as_dict()

    def in_words(self) -> str:
        return self.decisions.in_words()

    def _text(self, request: Request) -> Text:
        text = self._texts.get(request.request_id)
        if text is None:
            text = self._texts[request.request_id] = Text()
        return text

    def _plan_of(self, text: Text) -> Plan:
        choice = text.choice
        if choice is None:
            return _PLAIN[text.reason]
        return Plan(choice.length, member=choice.offer.member.place if self._several else None)

    def _choose(self, requests: Sequence[Request], texts: Sequence[Text]) -> None:
        """Make the best of all choices for a round."""
        if self._account.is_empty:
            return
        batch_size = len(requests)
        plain = self.costs.plain_seconds(batch_size)
        gain = self._gains.get(batch_size, 1.0)
        rate = gain * batch_size / plain
        offers = [
            self._offers(request, text, batch_size)
            for request, text in zip(requests, texts, strict=True)
        ]
        best: list[Offer] = []
        offered: list[Text] = []
        for text, own in zip(texts, offers, strict=True):
            if own:
                best.append(own[0] if len(own) == 1 else self._better(own, rate, batch_size))
                offered.append(text)
        found = self._found(best, batch_size, rate)
        if found is None:
            self._gains[batch_size] = gain + RATE_STEP * (1.0 - gain)
            self._try_one(requests, texts, offers, rate)
            return
        for text, offer, length in zip(offered, best, found.lengths, strict=True):
            text.choice = Choice(offer, length) if length else None
        if self._several and self._rounds % OTHERS_AFTER == 0:
            # One of the members that were not taken may be better than is known.
            others = [
                [
                    offer
                    for offer in own
                    if text.choice and offer.member is not text.choice.offer.member
                ]
                for text, own in zip(texts, offers, strict=True)
            ]
            self._try_one(requests, texts, others, rate)
        now = (1.0 + found.tokens / batch_size) / (1.0 + found.seconds / plain)
        self._gains[batch_size] = gain + RATE_STEP * (max(now, 1.0) - gain)

    def _found(self, offers: list[Offer], batch_size: int, rate: float) -> Lengths | None:
        """The best lengths for offers, as in the last round where they are the same."""
        if not offers:
            return None
        curve, speed = self.costs.curve(batch_size), self.costs.speed
        may_lose = self._account.credit * curve.plain * speed
        same, found = self._last
        if offers != same or (found is not None and found.seconds > may_lose):
            found = best_lengths(offers, rate, curve, speed, may_lose)
            self._last = offers, found
        return found

    def _offers(self, request: Request, text: Text, batch_size: int) -> list[Offer]:
        """What each member could draft for a request; those that have found nothing are left out."""
        most = request.params.max_tokens
        limit = self._most
        if most is not None:
            limit = min(limit, most - request.num_output_tokens - 1)
        if limit < 1 or not request.speculative:
            text.reason = PlainReason.SHORT if request.speculative else PlainReason.ASKED
            return []
        offers = []
        for member in self._members:
            level = member.level(request)
            if level is not None:
                offer = text.offer(member, request, level, limit)
                share = member.drafter.cost_share(request)
                scale = None if share is None else share * self.costs.plain_seconds(batch_size)
                offer.times = self.costs.draft(member.name, member.looks_up, batch_size, scale)
                offer.scale = 1.0 if scale is None else scale
                pending = 0 if member.looks_up else member.drafter.pending(request)
                offer.pending = pending
                offer.seconds = 0.0
                if pending > 1:
                    # Borne by the rounds to come, of some two tokens each.
                    whole = self.costs.prefill_seconds(member.name, pending)
                    offer.seconds = whole / max(1.0, 0.5 * self._tokens_left(request))
                offers.append(offer)
        if not offers:
            text.reason = PlainReason.NOTHING_FOUND
        return offers

    def _tokens_left(self, request: Request) -> float:
        """Tokens that are still expected: as outputs were, or half as many as there are already."""
        written, most = request.num_output_tokens, request.params.max_tokens
        expected = max(self._mean_output - written, 0.5 * written, 4.0)
        return expected if most is None else min(expected, most - written)

    def _better(self, offers: list[Offer], rate: float, batch_size: int) -> Offer:
        """The offer that is worth most, if all requests of the batch had the same."""
        curve, speed = self.costs.curve(batch_size), self.costs.speed

        def value(offer: Offer) -> float:
            found = best_lengths([offer] * batch_size, rate, curve, speed)
            return 0.0 if found is None else found.tokens - rate * found.seconds

        return max(offers, key=value)

    def _try_one(
        self,
        requests: Sequence[Request],
        texts: Sequence[Text],
        offers: Sequence[list[Offer]],
        rate: float,
    ) -> None:
        """Try out what may turn out to pay, for one request, where the account allows to lose it all."""
        curve = self.costs.curve(len(requests))
        for request, text, own in zip(requests, texts, offers, strict=True):
            for offer in own:
                if text.round < text.resume(offer.member):
                    continue
                if self._tokens_left(request) < LEAST_LEFT and self._rounds < ROUNDS_BEFORE:
                    break
                length = self._try_length(request, offer, curve)
                hopes = [offer.hopeful(request)] * len(requests)
                if length and best_lengths(hopes, rate, curve, self.costs.speed):
                    text.choice = Choice(offer, length, is_try=True)
                    return
                text.wait(offer.member)

    def _try_length(self, request: Request, offer: Offer, curve: Curve) -> int:
        """As many tokens as may be lost; 0 where none may."""
        plain = curve.plain * self.costs.speed
        most = min(TRY_LENGTH, self._most)
        if request.params.max_tokens is not None:
            most = min(most, request.params.max_tokens - request.num_output_tokens - 1)
        before = self.costs.prefill_seconds(offer.member.name, offer.pending) / plain
        if not offer.member.was_tried and before < FIRST_PREFILL * self._tokens_left(request):
            # Once for each drafter: otherwise long prompts would never see it.
            before = 0.0
        for length in range(most, 0, -1):
            forward = curve.at(length * offer.member.width) - curve.plain
            lost = (offer.times(length) + forward * self.costs.speed) / plain
            if lost <= TRY_COST or length == 1:
                return length if self._account.allows(lost + before) else 0
        return 0

    def _learn_acceptance(
        self, request: Request, text: Text, choice: Choice, draft: Draft, verdict: Verdict
    ) -> None:
        """Note what a request's draft has shown."""
        planned, most = choice.length, request.params.max_tokens
        if most is not None:
            planned = min(planned, most - request.num_output_tokens + len(verdict.token_ids) - 1)
        if planned > 0:
            choice.offer.member.observe(
                request, choice.offer.level, planned, verdict.num_accepted, len(draft)
            )
            text.learn_draft(self._rounds)

    def _learn_times(
        self, batch_size: int, made: Sequence[tuple[Text, Choice, Draft, int]], seconds: float
    ) -> tuple[float, float]:
        """Note what drafting took, where one member has drafted alone; the seconds that count, of the
        drafts and of what had to be run before: an interruption is not the drafter's."""
        member = made[0][1].offer.member
        if self._several and any(choice.offer.member is not member for _, choice, _, _ in made):
            return seconds, 0.0
        depth = max(draft.tree.depth for _, _, draft, _ in made)
        pending = max(choice.offer.pending for _, choice, _, _ in made)
        scale = max(choice.offer.scale for _, choice, _, _ in made)
        drafting, before = self.costs.observe_draft(
            member.name, member.looks_up, batch_size, depth, pending, seconds / scale
        )
        return scale * drafting, scale * before

    def _in_words(self, text: Text) -> str:
        """A decision and its reason."""
        if text.choice is None and text.reason is PlainReason.PAUSED and self._account.is_empty:
            return "plain: drafts have lost more time than they may"
        return text.in_words()
