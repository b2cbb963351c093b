"""Requests as policy `auto` sees them: their expected lengths, the drafts offered to them, and tries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from forerun.core import PlainReason, Plan, Request
from forerun.policies.beliefs import Beliefs, Member
from forerun.policies.budget import Trials
from forerun.policies.lengths import Lengths, Offer, best_lengths

# Drafts of a drafter that must be seen before their prompts may cost more than the account holds.
PROVEN = 8
# Assumed length of an output before any has ended, and the step with which it follows observed lengths.
USUAL_OUTPUT, OUTPUT_STEP = 64, 0.2
# Most rounds that are planned at once.
MOST_ROUNDS = 256
# Most rounds of a model's try: the first one runs cold and tells little of the costs of later ones.
TRY_ROUNDS = 4
# Rounds after which the draft offered to a request is looked at anew.
OFFER_ROUNDS = 8
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
        found: highest level of a lookup's confidence when the round was planned; -1 if none found anything.
        offers: drafts offered to it by member and level, with their limit and the round in which they end.
    """

    choice: Choice | None = None
    reason: PlainReason = PlainReason.PAUSED
    drafts: int = 0
    found: int = -1
    offers: dict[tuple[Member, int], tuple[int, int, Offer]] = field(default_factory=dict)

    @property
    def expected(self) -> tuple[int, float]:
        """Length of the draft, and the expected number of tokens of the round."""
        if self.choice is None:
            return 0, 1.0
        offer, length, _ = self.choice
        return length, 1.0 + sum(offer.survival[:length])

    @property
    def evidence(self) -> float:
        """Number of drafts that the choice's drafter has made for any request; old ones count less."""
        return 0.0 if self.choice is None else self.choice.offer.member.acceptance.evidence

    def plan(self, several: bool) -> Plan:
        """The plan of the choice; it names the member if there are several."""
        if self.choice is None:
            return _PLAIN[self.reason]
        offer, length, _ = self.choice
        return Plan(length, member=offer.member.place if several else None)

    def in_words(self) -> str:
        """The decision for the round, and its reason."""
        if self.choice is None:
            return _IN_WORDS[self.reason]
        offer, length, is_try = self.choice
        expected = f"{self.expected[1] - 1.0:.2f}"
        if is_try:
            return f"{offer.member.name}, {length} tokens, to see what is accepted ({expected} expected)"
        return (
            f"{offer.member.name}, {length} tokens, of which {expected} are expected to be accepted"
        )


class Outlook:
    """Expected output lengths, offers, and limits of losses of requests.

    Args:
        beliefs: beliefs about costs and drafters.
        most: most tokens of a draft along a path.
        lost_time: share of all time that may be lost.
    """

    def __init__(self, beliefs: Beliefs, most: int, lost_time: float) -> None:
        self._beliefs, self._most, self._lost_time = beliefs, most, lost_time
        self.forget()

    def forget(self) -> None:
        """Forget the requests so far."""
        # Mean tokens of an output.
        self._mean_output = float(USUAL_OUTPUT)
        self._last: tuple[int, list[Offer], Lengths | None] = (0, [], None)

    def new_text(self, request: Request) -> Text:
        """The state of a new request, whose drafts may lose a share of its time, prompt included."""
        curve = self._beliefs.costs.curve(1)
        prompt = request.num_prompt_tokens * curve.last_slope / curve.plain
        if request.speculative:
            self._beliefs.account.grant(self.tokens_left(request) + prompt)
        return Text()

    def offers(self, request: Request, text: Text, batch_size: int, round_: int) -> list[Offer]:
        """The drafts that members could make for a request; members that found nothing are left out."""
        most, limit = request.params.max_tokens, self._most
        limit = min(limit, request.hints.num_speculative_tokens or limit)
        if most is not None:
            limit = min(limit, most - request.num_output_tokens - 1)
        if limit < 1 or not request.speculative:
            text.reason = PlainReason.SHORT if request.speculative else PlainReason.ASKED
            return []
        offers, text.found = [], -1
        for member in self._beliefs.members[request.params.greedy]:
            level = member.level(request)
            if level is None:
                continue
            if member.looks_up:
                text.found = max(text.found, level)
            known = text.offers.get((member, level))
            if known is None or known[0] != limit or round_ >= known[1]:
                offer = self._offer(member, request, level, limit, batch_size)
                known = text.offers[member, level] = (limit, round_ + OFFER_ROUNDS, offer)
            offers.append(known[2])
        if not offers:
            text.reason = PlainReason.NOTHING_FOUND
        return offers

    def finds_more(self, requests: Sequence[Request], texts: Sequence[Text]) -> bool:
        """True if a lookup is more confident for a request now than when the round was planned."""
        return any(
            member.looks_up and (level := member.level(request)) is not None and level > text.found
            for request, text in zip(requests, texts, strict=True)
            for member in self._beliefs.members[request.params.greedy]
        )

    def _offer(
        self, member: Member, request: Request, level: int, limit: int, batch_size: int
    ) -> Offer:
        """The draft that a member could make for a request, with its expected times."""
        costs, drafter = self._beliefs.costs, member.drafter
        share = member.share = drafter.cost_share(request)
        scale = None if share is None else share * costs.plain_seconds(batch_size)
        pending = 0 if member.looks_up else drafter.pending(request)
        # The time of pending tokens is spread over the rounds to come, of about two tokens each.
        before = costs.prefill_seconds(member.name, pending)
        return Offer(
            member,
            member.acceptance.survival(request.request_id, request.hints.namespace, level, limit),
            level,
            costs.draft(member.name, member.looks_up, batch_size, scale),
            pending,
            before / max(1.0, 0.5 * self.tokens_left(request)),
            1.0 if scale is None else scale,
        )

    def can_pay(self, offer: Offer) -> bool:
        """True if a drafter has proven worth running a prompt, or that time may be lost."""
        if offer.pending < 2 or offer.member.acceptance.evidence >= PROVEN:
            return True
        costs = self._beliefs.costs
        most = self._beliefs.account.credit * costs.plain_seconds(1)
        return costs.prefill_seconds(offer.member.name, offer.pending) <= most

    def best(self, offers: list[Offer], batch_size: int) -> Lengths | None:
        """The best lengths for offers, one a request; None if plain decoding is better.

        If the offers are those of the last round, so is the result.
        """
        costs, credit = self._beliefs.costs, self._beliefs.account.credit
        if not offers or credit <= 0.0:
            return None
        most_seconds = credit * costs.plain_seconds(batch_size)
        size, same, found = self._last
        if (
            size != batch_size
            or offers != same
            or (found is not None and found.seconds > most_seconds)
        ):
            found = best_lengths(offers, costs.curve(batch_size), costs.speed, most_seconds)
            self._last = batch_size, offers, found
        return found

    def better(self, offers: list[Offer], batch_size: int) -> Offer:
        """The most valuable of several offers to one request, if the whole batch had the same."""
        if len(offers) == 1:
            return offers[0]
        costs = self._beliefs.costs
        for offer in offers:
            if offer.rate is None:
                found = best_lengths([offer] * batch_size, costs.curve(batch_size), costs.speed)
                offer.rate = 0.0 if found is None else found.rate
        return max(offers, key=lambda offer: offer.rate or 0.0)

    def try_one(
        self,
        requests: Sequence[Request],
        texts: Sequence[Text],
        offers: Sequence[list[Offer]],
        members: Iterable[Member],
    ) -> tuple[Trials | None, int]:
        """Choose a due try of a drafter that is not expected to pay: one token a round for one request.

        Args:
            requests, texts, offers: the requests.
            members: drafters that have an offer and were not chosen.

        Returns:
            The schedule of the drafter that is tried, None if none is, and the number of rounds.
        """
        for member in members:
            member.trials.wait()
            if member.trials.rounds_left > 0:
                continue
            every = list(zip(requests, texts, offers, strict=True))
            for request, text, own in sorted(every, key=lambda entry: entry[1].choice is not None):
                for offer in own:
                    if offer.member is not member:
                        continue
                    if rounds := self._rounds_to_try(request, offer, len(requests)):
                        # Beside another draft, a try costs what that one would bring.
                        is_short = member.looks_up or text.choice is not None
                        text.choice = Choice(offer, 1, is_try=True)
                        return member.trials, 1 if is_short else rounds
        return None, 0

    def _rounds_to_try(self, request: Request, offer: Offer, batch_size: int) -> int:
        """Number of rounds in which a try may lose its cost; 0 also if no acceptance would pay."""
        costs, member = self._beliefs.costs, offer.member
        plain = costs.plain_seconds(batch_size)
        loss = offer.times.first / plain
        loss += costs.curve(batch_size).added(member.width) * costs.speed / plain
        if loss >= 1.0 and member.drafter.cost_share(request) is not None:
            return 0
        # A long pause pays for its try, whatever the account holds: tries never end.
        most = max(self._beliefs.account.credit, self._lost_time * member.trials.waited)
        most -= costs.prefill_seconds(member.name, offer.pending) / plain
        return max(min(int(most / max(loss, 0.01)), TRY_ROUNDS), 0)

    def rounds_left(self, requests: Sequence[Request], texts: Sequence[Text]) -> int:
        """Number of rounds in which no request is expected to come to its limit."""
        rounds = [MOST_ROUNDS]
        for request, text in zip(requests, texts, strict=True):
            most = request.params.max_tokens
            if most is not None:
                length, tokens = text.expected
                rounds.append(int((most - request.num_output_tokens - length) / tokens))
        return max(min(rounds), 1)

    def tokens_left(self, request: Request) -> float:
        """Expected number of tokens to come: by earlier outputs, or half of those already written."""
        written, most = request.num_output_tokens, request.params.max_tokens
        expected = max(self._mean_output - written, 0.5 * written, 4.0)
        return expected if most is None else min(expected, most - written)

    def ended(self, request: Request) -> None:
        """Take in the length of an output."""
        self._mean_output += OUTPUT_STEP * (request.num_output_tokens - self._mean_output)
