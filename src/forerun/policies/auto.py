"""Policy `auto`: speculate as far as it pays by measured costs and acceptance, or not at all.

Each round the policy chooses the drafters and lengths with the highest value over the whole batch:
expected tokens, less those that their time would bring otherwise (`policies/lengths.py`). Not
drafting is one of the choices. An unknown drafter is assumed to be an ordinary one, so it drafts
from the first round until its acceptance says otherwise; after that it is tried now and then
(`policies/budget.py`).

Losses are bounded whatever the estimates say: an account holds the budget for learning, is credited
with a share of all time and with the gains of drafts, and no draft may cost more
(`policies/budget.py`).
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from itertools import chain
from statistics import median_low
from time import perf_counter
from typing import Any

from pydantic import Field

from forerun.contracts import CausalLM, Drafter, Rehearse
from forerun.core import Draft, PlainReason, Plan, Request, RoundTimes, Verdict
from forerun.costs.table import CostTable
from forerun.options import options
from forerun.policies.base import BasePolicy
from forerun.policies.beliefs import Beliefs, Member
from forerun.policies.budget import TUITION, Account, Trials
from forerun.policies.costs import MUCH, LiveCosts
from forerun.policies.decisions import Decisions
from forerun.policies.lengths import Offer, Valuation
from forerun.policies.memory import Memory, recall
from forerun.policies.outlook import DRAFT_ROUNDS, FIRST_DRAFTS, FIRST_TOKENS, Choice, Outlook, Text
from forerun.policies.stretch import Drought, PlainRounds, Seen, Stretch, Timing

logger = logging.getLogger(__name__)

LONGEST = 16
# If nothing pays, the policy plans again after REST to LONGEST_REST rounds, or when a request arrives. This
# applies if models make all drafts, and to batches of CROWD, in which looking up costs more than it finds.
REST, LONGEST_REST, CROWD = 32, 256, 4
# Nothing is looked up in such rounds.
_NOT_LOOKED = (PlainReason.ASKED, PlainReason.SHORT)
# Plain rounds after which a draft runs cold.
COLD_AFTER = 8


@options
class AutoOptions:
    """Options of policy `auto`: the time that it may lose, and whether it measures first."""

    lost_time: float = Field(
        default=0.02,
        ge=0.0,
        le=1.0,
        description="Share of all time that may be lost in trying out drafts, beyond what learning costs.",
    )
    calibrate: bool = Field(
        default=True,
        description="Time the model and its drafts when they are first loaded, and keep what was measured "
        "and learned on disk.",
    )
    log_decisions: bool = Field(default=False, description="Log every decision and its reason.")


class AutoPolicy(BasePolicy):
    """Plans the most valuable choice: a drafter and a length, or no draft.

    Args:
        num_speculative_tokens: most tokens along a path; None is `LONGEST`.
        options: its own options.
    """

    name = "auto"
    options = AutoOptions

    def __init__(
        self, num_speculative_tokens: int | None = None, options: AutoOptions | None = None
    ) -> None:
        self.settings = options or AutoOptions()
        self._most = num_speculative_tokens or LONGEST
        self._beliefs = Beliefs(self._new_account(), LiveCosts(most=self._most))
        self.decisions, self._several = Decisions(), False
        self._texts: dict[int, Text] = {}
        self._outlook = Outlook(self._beliefs, self._most, self.settings.lost_time)
        self._valuation = Valuation(self._beliefs)
        self._timing, self._drought = Timing(), Drought()
        self._stretch, self._plain = Stretch(), PlainRounds()
        self.clock: Callable[[], float] = perf_counter
        self._planning, self._rounds, self._is_plain = 0.0, 0, True
        self._tried: Trials | None = None
        # The members that could have drafted in the last round that was planned.
        self._offering: dict[Member, None] = {}
        self._memory: Memory | None = None

    @property
    def costs(self) -> LiveCosts:
        """Costs of rounds."""
        return self._beliefs.costs

    def know(self, table: CostTable) -> None:
        """Take in times of the target's forwards that were measured elsewhere."""
        self._beliefs.costs = LiveCosts(table, self._most)

    def attach(self, target: CausalLM, drafter: Drafter, rows: int) -> None:
        """Receive target and drafter; time the target's forwards if that was never done."""
        self._several = bool(drafter.members)
        members = drafter.members or (drafter,)
        self._beliefs.members = [Member(place, member) for place, member in enumerate(members)]
        if self.settings.calibrate:
            self._memory = recall(target, drafter, rows)
            self.know(self._memory.table)
            self._memory.hand_over(self._beliefs)
            # Save when the policy is deleted, and when the program ends.
            weakref.finalize(self, self._memory.save)

    def rehearse(self, run: Rehearse) -> None:
        """Warm up and time drafts before the first request; measure again under a changed load."""
        if self.settings.calibrate and self._memory is not None:
            self._memory.check(self._beliefs, run)

    @property
    def learned(self) -> dict[str, Any]:
        """Costs of drafts, acceptance, tries and the account, ready for JSON."""
        return self._beliefs.learned

    def restore(self, learned: Any) -> None:
        """Start from the values that `learned` returned."""
        self._beliefs.restore(learned)

    def forget(self) -> None:
        self._beliefs.forget(self._new_account())
        self._outlook.forget()
        self._valuation.forget()
        self._timing, self._drought = Timing(), Drought()
        self._stretch, self._plain, self._offering = Stretch(), PlainRounds(), {}

    def close(self) -> None:
        self._take_in()
        if self._memory is not None:
            self._memory.save()

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        if self._stretch.goes_on(requests):
            return self._stretch.plans
        started = self.clock()
        if self._stretch.plans:
            self._take_in()
        self._tried = None
        texts = [self._text(request) for request in requests]
        timed = self._timing.is_due or not self.costs.is_known
        reason = PlainReason.TIMED if timed else PlainReason.PAUSED
        for text in texts:
            text.choice, text.reason = None, reason
        rounds = 1 if timed else self._choose(requests, texts)
        plans = [text.plan(self._several) for text in texts]
        self._is_plain = all(text.choice is None for text in texts)
        self._stretch.begin(requests, plans, rounds)
        self._planning = self.clock() - started
        if self.settings.log_decisions:
            for request, text in zip(requests, texts, strict=True):
                logger.info("request %d: %s", request.request_id, text.in_words())
        return plans

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        times: RoundTimes,
    ) -> None:
        self._rounds += 1
        seen = Seen(drafts, verdicts, times, self._planning)
        self._planning = 0.0
        if self._memory is not None:
            self._memory.note()
        if self._stretch.plans:
            self._stretch.note(seen)
        elif self._is_plain:
            if not self._plain.takes(len(requests)):
                self._take_in_plain()
            self._plain.add(len(requests), seen)
            self._drought.note(1)
            if self._timing.is_due or not self.costs.is_known:
                self._take_in_plain()
        else:
            self._take_in_plain()
            self._judge([self._learn(requests, [seen])])

    def _learn(self, requests: Sequence[Request], rounds: Sequence[Seen]) -> float:
        """Take in rounds with the same plans and return the gain of tries among them, in plain rounds."""
        batch_size, count = len(requests), len(rounds)
        extra, emitted, accepted, depth, found = 0, 0, 0, 0.0, False
        made = list[tuple[Text, Choice]]()
        texts = [self._text(request) for request in requests]
        for place, (drafts, verdicts, _, _) in enumerate(rounds, 1):
            depth += max(draft.tree.depth for draft in drafts) / count
            for request, text, draft, verdict in zip(
                requests, texts, drafts, verdicts, strict=True
            ):
                extra += len(draft)
                emitted += len(verdict.token_ids)
                if text.choice is not None and verdict.token_ids:
                    made.append((text, text.choice))
                    found = found or verdict.num_accepted > 0
                    if text.choice.is_try:
                        accepted += verdict.num_accepted
                    text.learn_draft(request, draft, verdict, place == count)
        # Rounds after a prompt or a rest run cold; their costs say nothing of other rounds.
        cold = bool(extra) and (
            self._drought.plain >= COLD_AFTER or any(text.drafts == 1 for text, _ in made)
        )
        self._drought.note(count, extra > 0, found)
        forward = median_low([times.target + times.verify for _, _, times, _ in rounds])
        if not cold:
            self.costs.observe(batch_size, extra / count, forward, count)
        plain = self.costs.plain_seconds(batch_size)
        # What rounds are believed to take: what interrupts one is no loss by its drafts.
        seconds = count * self.costs.curve(batch_size).at(extra / count) * self.costs.speed
        planning = sum(planned for _, _, _, planned in rounds)
        self._timing.note(count if extra else 0, forward / plain)
        if made:
            choices = list(dict.fromkeys(choice for _, choice in made))
            spent = [max(times.draft - planned, 0.0) for _, _, times, planned in rounds]
            drafting, before = self._beliefs.learn_times(batch_size, choices, depth, spent, cold)
            seconds += drafting
            # A try is judged by its own times, because what is believed of them may be long past.
            forward += median_low(spent)
            made[0][0].debt += before / plain
        else:
            seconds = count * plain
        tokens, elapsed = emitted / batch_size, seconds / plain
        self._beliefs.account.settle(tokens, elapsed, planning / plain)
        drafting_requests, is_due = 0, count > 1 or self._rounds % DRAFT_ROUNDS == 0
        for request, text in zip(requests, texts, strict=True):
            if text.choice is not None:
                if is_due or text.drafts <= FIRST_DRAFTS:
                    text.expect_anew()
                drafting_requests += 1
                member, length = text.choice.offer.member, text.choice.length
                self.decisions.count(
                    member.name, length, 1, count, batch_size, emitted, seconds, plain
                )
            if text.debt:
                due = text.pay_debt(count, tokens - elapsed, self._outlook.tokens_left(request))
                self._beliefs.account.charge(due / batch_size)
        if alike := batch_size - drafting_requests:
            self.decisions.count("", 0, alike, count, batch_size, emitted, seconds, plain)
        return accepted - max(forward / plain - 1.0, 0.0) * count**2 / max(len(made), 1)

    def _judge(self, gains: Sequence[float]) -> None:
        """Record whether a try has paid, if there was one."""
        gain = sum(gains)
        if self._tried is not None and gains:
            self._tried.succeed() if gain > 0.0 else self._tried.fail()
            self._tried = None

    def release(self, request: Request) -> None:
        if self._stretch.drafts:
            self._take_in()
        text = self._texts.pop(request.request_id, None)
        if text is None:
            return
        self._beliefs.account.charge(text.debt)
        for member in self._beliefs.members:
            member.acceptance.release(request.request_id)
        self._outlook.ended(request)

    def report(self) -> dict[str, Any]:
        self._take_in()
        return self.decisions.as_dict()

    def given_up(self) -> list[str]:
        return self._beliefs.given_up()

    def _new_account(self) -> Account:
        return Account(self.settings.lost_time, TUITION * FIRST_TOKENS)

    def _take_in(self) -> None:
        """Take in all rounds that were only noted so far."""
        self._take_in_plain()
        stretch, self._stretch = self._stretch, Stretch()
        if stretch.drafts:
            # The first round may have run cold, or run a prompt before drafting.
            choices = [self._text(request).choice for request in stretch.requests]
            prompts = any(choice is not None and choice.offer.pending > MUCH for choice in choices)
            first = int(prompts or self._drought.plain > 0 or self._tried is not None)
            parts = stretch.seen[:first], stretch.seen[first:]
            self._judge([self._learn(stretch.requests, rounds) for rounds in parts if rounds])
        elif stretch.seen:
            for seen in stretch.seen:
                self._plain.add(len(stretch.plans), seen)
            self._drought.note(len(stretch.seen))
            for member in self._offering:
                member.trials.wait(len(stretch.seen) - 1)
            self._take_in_plain()

    def _take_in_plain(self) -> None:
        """Take in the plain rounds that were only noted so far."""
        plain, self._plain = self._plain, PlainRounds()
        if rounds := len(plain.seconds):
            before = self.costs.plain_seconds(plain.batch_size)
            seconds = self._beliefs.learn_plain(plain, self._timing.counted)
            self.decisions.count_plain(rounds * plain.batch_size, rounds * seconds)
            self._timing.note(0, plain.seconds[-1] / before)

    def _text(self, request: Request) -> Text:
        text = self._texts.get(request.request_id)
        if text is None:
            text = self._texts[request.request_id] = self._outlook.new_text(request)
        return text

    def _choose(self, requests: Sequence[Request], texts: Sequence[Text]) -> int:
        """Choose the best drafts for a round and return the number of rounds that the choice holds for."""
        batch_size = len(requests)
        offers = [
            self._outlook.offers(request, text, self._rounds)
            for request, text in zip(requests, texts, strict=True)
        ]
        self._offering = members = {offer.member: None for offer in chain(*offers)}
        declined = all(offer.is_declined for offer in chain(*offers))
        if declined and all(member.trials.rounds_left > 1 for member in members):
            # Nothing has changed since the last round, and no try is due.
            for member in members:
                member.trials.wait()
            self._valuation.best([], batch_size, 0.0)
            return self._rounds_of_rest(requests, texts)
        for request, own in zip(requests, offers, strict=True):
            self._outlook.price(request, own, batch_size)
        credit = self._beliefs.account.credit
        found, best, offered = None, list[Offer](), list[Text]()
        if credit > 0.0:
            for text, own in zip(texts, offers, strict=True):
                usable = [offer for offer in own if self._outlook.can_pay(offer)]
                if usable:
                    best.append(self._valuation.better(usable, batch_size))
                    offered.append(text)
            found = self._valuation.best(best, batch_size, credit)
            if found is None:
                for offer in best:
                    offer.is_declined = True
        chosen: set[Member] = set()
        if found is not None:
            for text, offer, length in zip(offered, best, found.lengths, strict=True):
                if length:
                    text.choice = Choice(offer, length)
                    chosen.add(offer.member)
                    offer.member.trials.reset()
        self._tried, rounds = self._outlook.try_one(requests, texts, offers, chosen)
        if self._tried is not None:
            return rounds if found is None else 1
        if found is None:
            return self._rounds_of_rest(requests, texts)
        if not self._beliefs.only_models:
            return 1
        # Planning takes time too: if models draft for all requests and are known by now, plans hold a while.
        lost = found.seconds / self.costs.plain_seconds(batch_size)
        rounds = DRAFT_ROUNDS if DRAFT_ROUNDS * lost <= credit else max(int(credit / lost), 1)
        for request, text in zip(requests, texts, strict=True):
            if text.choice is None:
                return 1
            rounds = min(rounds, max(text.drafts, 1))
            rounds = min(rounds, self._outlook.rounds_left(request, text.choice.length))
        return rounds

    def _rounds_of_rest(self, requests: Sequence[Request], texts: Sequence[Text]) -> int:
        """Number of rounds without a draft if none pays: until the next try, or for a while."""
        if not (self._beliefs.only_models or len(texts) >= CROWD):
            if all(text.reason in _NOT_LOOKED for text in texts):
                return 1
            written = min(request.num_output_tokens for request in requests)
            return 1 + self._drought.missed(written)
        if any(text.reason is not PlainReason.PAUSED for text in texts):
            return 1
        left = min(member.trials.rounds_left for member in self._beliefs.members)
        # Rest as long as before, because knowledge changes ever more slowly. A try that is due but cannot be
        # paid for waits for the account.
        rest = min(max(self._drought.plain, REST), LONGEST_REST)
        return min(left, rest) if left > 0 else REST
