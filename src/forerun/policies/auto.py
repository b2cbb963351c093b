"""Policy `auto`: speculate as far as it pays by measured costs and acceptance, or not at all.

Each round the policy chooses the drafters and lengths that are expected to bring the most tokens a
second over the whole batch (`policies/lengths.py`). Not drafting is one of the choices. An unknown
drafter is assumed to be an ordinary one, so it drafts from the first round until its acceptance says
otherwise; after that it is tried now and then (`policies/budget.py`).

Losses are bounded whatever the estimates say: an account holds the budget for learning, is credited
with a share of all time and with the gains of drafts, and no draft may cost more
(`policies/budget.py`).
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from itertools import chain
from statistics import median, median_low
from time import perf_counter
from typing import Any

from pydantic import Field

from forerun.contracts import CausalLM, Drafter, Rehearse
from forerun.core import Draft, PlainReason, Plan, Request, RoundTimes, Verdict
from forerun.costs.table import CostTable
from forerun.options import options
from forerun.policies.base import BasePolicy
from forerun.policies.beliefs import Beliefs, Member
from forerun.policies.budget import (
    FIRST_TOKENS,
    MOST_PLANNING,
    TUITION,
    Account,
    Search,
    Trials,
)
from forerun.policies.costs import LiveCosts
from forerun.policies.decisions import Decisions, Seen
from forerun.policies.lengths import Offer
from forerun.policies.memory import Memory, recall
from forerun.policies.outlook import PROVEN, Choice, Outlook, Text

logger = logging.getLogger(__name__)

LONGEST = 16
# If nothing pays, the policy plans again after REST to LONGEST_REST rounds, or when a request arrives. This
# applies if models make all drafts, and to batches of CROWD, in which looking up costs more than it finds.
REST, LONGEST_REST, CROWD = 32, 256, 4
# Elsewhere, if looking up does not pay, it pauses (`Search`).
# Step with which the share of time that planning takes follows what is measured.
SHARE_STEP = 0.05
_NOT_LOOKED = (PlainReason.ASKED, PlainReason.SHORT)
# Plain rounds after which a lookup's round runs cold; a model's draft does after any.
COLD_AFTER = 8
# Expected acceptance is updated after each of a request's FIRST_DRAFTS drafts, then each DRAFT_ROUNDS rounds.
# If models draft for all requests, a plan holds HELD rounds for each of its earlier drafts and HELD_BY_ANY
# for each of any request's, DRAFT_ROUNDS at most, because planning takes time too.
FIRST_DRAFTS, DRAFT_ROUNDS, HELD, HELD_BY_ANY = 8, 8, 1 / 2, 1 / 32
# Drafting rounds after which a plain one is timed, and the rounds that it counts as, because others tell less
# of the machine's speed. Plain rounds that are learned from together, and most that they count as.
TIMED_AFTER, COUNTED, REPEATED = 75, 4, 8


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
        self._outlook = Outlook(self._beliefs, self._most, self.settings.lost_time)
        self.decisions, self._several = Decisions(), False
        self._texts: dict[int, Text] = {}
        self.clock: Callable[[], float] = perf_counter
        self._memory: Memory | None = None
        self._start()

    def _start(self) -> None:
        """Begin without rounds."""
        # What was planned, the rounds for which it still holds, and what drafts.
        self._plans, self._left, self._is_plain = list[Plan](), 0, True
        self._requests, self._ids, self._running = list[Request](), list[int](), list[Text]()
        self._offering = dict[Member, None]()
        self._tried: Trials | None = None
        # Rounds that were not yet learned from, and the seconds of planning the next one.
        self._seen, self._plain, self._planning = list[Seen](), list[Seen](), 0.0
        # Share of a plain round that planning takes where nothing pays.
        self._plan_share = 0.0
        # For batches of greedy requests, and for others: sampled text repeats itself less.
        self._searches = {True: Search(), False: Search()}
        self._search = self._searches[True]
        # Rounds: all, those since a draft, and drafting ones since a plain one.
        self._rounds = self._undrafted = self._drafted = 0

    @property
    def costs(self) -> LiveCosts:
        """Measured costs of rounds."""
        return self._beliefs.costs

    def know(self, table: CostTable) -> None:
        """Take in times of the target's forwards that were measured elsewhere."""
        self._beliefs.costs = LiveCosts(table, self._most)

    def attach(self, target: CausalLM, drafter: Drafter, rows: int) -> None:
        """Receive target and drafter; time the target's forwards if that was never done."""
        self._several = bool(drafter.members)
        members = drafter.members or (drafter,)
        self._beliefs.members = {
            greedy: [Member(place, member, greedy) for place, member in enumerate(members)]
            for greedy in (True, False)
        }
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
        self._start()

    def close(self) -> None:
        self._take_in()
        if self._memory is not None:
            self._memory.save()

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        ids = [request.request_id for request in requests]
        held, whole = self._left and ids == self._ids, self._is_plain or self._tried is not None
        if held and (whole or not self._outlook.finds_more(requests, self._running)):
            self._left -= 1
            return self._plans
        started = self.clock()
        self._take_in(batch_size=len(requests))
        timed = self._drafted >= TIMED_AFTER or not self.costs.is_known
        self._requests, self._ids = list(requests), ids
        self._search = self._searches[all(request.params.greedy for request in requests)]
        self._running = texts = [self._text(request) for request in requests]
        for text in texts:
            text.choice, text.reason = None, PlainReason.TIMED if timed else PlainReason.PAUSED
        self._tried, self._offering = None, {}
        if timed:
            self._left = self.costs.rounds_to_time() - 1 if self._drafted else 0
        else:
            self._left = self._choose(requests, texts) - 1
        self._plans = [text.plan(self._several) for text in texts]
        self._is_plain = all(text.choice is None for text in texts)
        self._planning = self.clock() - started
        if self._is_plain and not timed:
            share = self._planning / self.costs.plain_seconds(len(requests))
            # The clock may have jumped.
            share = min(max(share, 0.0), MOST_PLANNING)
            self._plan_share += SHARE_STEP * (share - self._plan_share)
        if self.settings.log_decisions:
            for request, text in zip(requests, texts, strict=True):
                logger.info("request %d: %s", request.request_id, text.in_words())
        return self._plans

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        times: RoundTimes,
    ) -> None:
        self._rounds += 1
        own = [draft for draft in drafts if not draft.forced]
        if len(own) < len(drafts) and not any(map(len, own)):
            # What masks forced is no plain round, and tells nothing of a drafter.
            return
        planned = [] if self._is_plain else drafts
        self._seen.append(Seen.of(len(requests), planned, verdicts, times, self._planning))
        self._planning = 0.0
        if self._memory is not None:
            self._memory.note()

    def release(self, request: Request) -> None:
        if not self._is_plain:
            self._take_in()
        if self._texts.pop(request.request_id, None) is None:
            return
        for member in self._beliefs.members[request.params.greedy]:
            member.acceptance.release(request.request_id)
        self._outlook.ended(request)

    def report(self) -> dict[str, Any]:
        self._take_in()
        return self.decisions.as_dict()

    def given_up(self) -> list[str]:
        return self._beliefs.given_up()

    def _new_account(self) -> Account:
        return Account(self.settings.lost_time, TUITION * FIRST_TOKENS)

    def _text(self, request: Request) -> Text:
        text = self._texts.get(request.request_id)
        if text is None:
            text = self._texts[request.request_id] = self._outlook.new_text(request)
        return text

    def _take_in(self, batch_size: int = 0) -> None:
        """Learn from the rounds since the last plan; from plain ones together, while the batch size stays."""
        seen, self._seen, self._left = self._seen, [], 0
        if seen and self._is_plain:
            self._plain += seen
            self._undrafted += len(seen)
            if any(text.reason not in _NOT_LOOKED for text in self._running):
                self._search.observe(len(seen))
        if seen:
            chosen = {text.choice.offer.member for text in self._running if text.choice}
            for member in self._offering.keys() - chosen:
                member.trials.wait(len(seen) - 1)
        drafted = bool(seen) and not self._is_plain
        few = 0 < len(self._plain) < REPEATED and self._plain[0].batch_size == batch_size
        if self._plain and (drafted or not few or self._drafted or not self.costs.is_known):
            self._learn_plain()
        if drafted:
            self._learn(seen)

    def _learn_plain(self) -> None:
        """Learn from the plain rounds that were noted."""
        plain, self._plain = self._plain, []
        batch_size, rounds = plain[0].batch_size, len(plain)
        counted = COUNTED if self._drafted >= TIMED_AFTER else 1
        forwards = [one.forward for one in plain]
        settled = self.costs.settled(forwards) if self._drafted else forwards
        self.costs.observe(batch_size, 0, median(settled), min(len(settled) * counted, REPEATED))
        seconds = self.costs.plain_seconds(batch_size)
        planning = sum(one.planning for one in plain) / seconds
        self._beliefs.account.settle(rounds, rounds, planning)
        count, whole = rounds * batch_size, rounds * seconds
        self.decisions.count("", 0, count, count, whole, whole)
        self._drafted = 0

    def _learn(self, seen: Sequence[Seen]) -> None:
        """Learn from drafting rounds with the same plans."""
        batch_size, count, beliefs = len(self._running), len(seen), self._beliefs
        chosen = [text.choice for text in self._running if text.choice is not None]
        extra = sum(sum(one.nodes) for one in seen) / count
        offers = [choice.offer for choice in chosen]
        # Rounds after a prompt or a rest run cold; their costs say nothing of other rounds.
        first = any(text.choice is not None and not text.drafts for text in self._running)
        after = COLD_AFTER if all(offer.member.looks_up for offer in offers) else 1
        cold = extra > 0 and (first or self._undrafted >= after)
        accepted = self._learn_acceptance(seen)
        self._undrafted = 0 if extra else self._undrafted + count
        self._drafted = self._drafted + count if extra else 0
        warm = seen[cold:]
        forward = median_low([one.forward for one in warm or seen])
        if warm:
            self.costs.observe(batch_size, extra, forward, len(warm))
        spent = [max(one.draft - one.planning, 0.0) for one in seen]
        depth = sum(one.depth for one in seen) / count
        drafting, before = beliefs.learn_times(batch_size, offers, depth, spent, cold)
        # What rounds are believed to take: what interrupts one is no loss by its drafts.
        plain = self.costs.plain_seconds(batch_size)
        seconds = count * self.costs.curve(batch_size).at(extra) * self.costs.speed + drafting
        emitted = sum(sum(one.emitted) for one in seen)
        planning = sum(one.planning for one in seen)
        beliefs.account.settle(emitted / batch_size, seconds / plain, planning / plain)
        self._search.observe(count, accepted)
        # A try is expected to lose, so that it tells nothing of what is given up by a pause.
        if not self._tried and all(offer.member.looks_up for offer in offers):
            self._search.gained((emitted / batch_size - seconds / plain) / count)
        proven = all(offer.member.acceptance.evidence >= PROVEN for offer in offers)
        if self._tried is not None or not proven:
            # The prompt of a proven drafter is an investment, any other a loss.
            beliefs.account.charge(before / plain)
        if self._tried is not None:
            # A try is judged by its own times, because what is believed of them may be long past.
            lost = max((forward + median_low(spent[cold:] or spent)) / plain - 1.0, 0.0)
            won = sum(
                one.accepted[place] or 0
                for one in seen
                for place, text in enumerate(self._running)
                if text.choice is not None and text.choice.is_try
            )
            self._tried.succeed() if won > count * lost / len(chosen) else self._tried.fail()
            self._tried = None
        tokens, time = emitted / batch_size, seconds / batch_size
        for text in self._running:
            name, length = "", 0
            if text.choice is not None:
                name, length = text.choice.offer.member.name, text.choice.length
            self.decisions.count(name, length, count, tokens, time, tokens * plain / batch_size)

    def _learn_acceptance(self, seen: Sequence[Seen]) -> int:
        """Learn what was accepted in rounds, and return the number of accepted tokens."""
        accepted = 0
        for place, text in enumerate(self._running):
            if text.choice is None:
                continue
            request, (offer, length, _) = self._requests[place], text.choice
            for one in seen:
                number = one.accepted[place]
                if one.emitted[place] and number is not None:
                    offer.member.observe(request, offer.level, length, number, one.nodes[place])
                    text.drafts += 1
                    accepted += number
            if len(seen) > 1 or text.drafts <= FIRST_DRAFTS or self._rounds % DRAFT_ROUNDS == 0:
                text.offers.clear()
        return accepted

    def _choose(self, requests: Sequence[Request], texts: Sequence[Text]) -> int:
        """Choose the best drafts for a round and return the number of rounds that the choice holds for."""
        outlook, batch_size = self._outlook, len(requests)
        offers = [
            outlook.offers(request, text, batch_size, self._rounds)
            for request, text in zip(requests, texts, strict=True)
        ]
        self._offering = members = {offer.member: None for offer in chain(*offers)}
        best, offered = list[Offer](), list[Text]()
        for text, own in zip(texts, offers, strict=True):
            if usable := [offer for offer in own if outlook.can_pay(offer)]:
                best.append(outlook.better(usable, batch_size))
                offered.append(text)
        found, chosen = outlook.best(best, batch_size), set[Member]()
        if found is not None:
            for text, offer, length in zip(offered, best, found.lengths, strict=True):
                if length:
                    text.choice = Choice(offer, length)
                    chosen.add(offer.member)
                    offer.member.trials = Trials()
        others = [member for member in members if member not in chosen]
        self._tried, rounds = outlook.try_one(requests, texts, offers, others)
        if self._tried is not None:
            return min(rounds, outlook.rounds_left(requests, texts))
        if found is None:
            return self._rounds_of_rest(requests, texts)
        by_models = all(text.choice and not text.choice.offer.member.looks_up for text in texts)
        if self._undrafted or not by_models:
            return 1
        lost = found.seconds / self.costs.plain_seconds(batch_size)
        paid = int(self._beliefs.account.credit / max(lost, 0.01))
        held = [int(HELD * text.drafts + HELD_BY_ANY * text.evidence) for text in texts]
        return max(min(*held, paid, DRAFT_ROUNDS, outlook.rounds_left(requests, texts)), 1)

    def _rounds_of_rest(self, requests: Sequence[Request], texts: Sequence[Text]) -> int:
        """Number of rounds without a draft if none pays: until the next try, or for a while."""
        if all(text.reason is PlainReason.ASKED for text in texts):
            return LONGEST_REST
        if not (self._beliefs.only_models or len(texts) >= CROWD):
            if all(text.reason in _NOT_LOOKED for text in texts):
                return 1
            written = min(request.num_output_tokens for request in requests)
            return self._search.pause(self._plan_share, written)
        if any(text.reason is not PlainReason.PAUSED for text in texts):
            return 1
        left = min(member.trials.rounds_left for member in self._offering)
        # Rest as long as before, as knowledge changes ever more slowly. A try that cannot be paid for waits.
        rest = min(max(self._undrafted, REST), LONGEST_REST)
        return min(left, rest) if left > 0 else REST
