"""Knowledge of policy `auto` beyond the running requests: costs, drafters, and the budget for losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forerun.contracts import Drafter
from forerun.core import Request
from forerun.policies.acceptance import Acceptance, level_of
from forerun.policies.budget import Account, Trials
from forerun.policies.costs import MUCH, LiveCosts

if TYPE_CHECKING:
    from forerun.policies.lengths import Offer

# Acceptance rate of an ordinary draft model, and the rounds that it counts as before any was seen; the rounds
# that a trained head's own figures count as.
ORDINARY_RATE, ORDINARY_WEIGHT, MEASURED_WEIGHT = 0.7, 3.0, 8.0
# Step with which the width of drafts follows observed widths.
WIDTH_STEP = 0.05


class Member:
    """One of the drafters that can be chosen, for greedy requests or for those that sample.

    A sampled token matches a draft less often than a greedy one.

    Args:
        place: index among the drafter's members.
        drafter: the drafter itself.
        greedy: whether it is for greedy requests.
    """

    def __init__(self, place: int, drafter: Drafter, greedy: bool) -> None:
        self.place, self.drafter, self.greedy = place, drafter, greedy
        self.name, self.looks_up = drafter.name, drafter.looks_up
        self.forget()

    def forget(self) -> None:
        """Forget what was learned; begin with the drafter's recorded acceptance."""
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
    def key(self) -> str:
        """Name of the member in a file."""
        return f"{self.name}, {'greedy' if self.greedy else 'sampled'}"

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
            f"{self.name} was given up for {'greedy' if self.greedy else 'sampled'} requests "
            f"{seen if self.rounds else 'in an earlier run'}: a drafted token takes {cost:.2f} of a "
            "plain round, and with its check more than it brings; it is tried again now and then, and "
            "--policy fixed drafts on"
        )


@dataclass
class Beliefs:
    """Costs, drafters and the account; they outlive requests and, saved to disk, engines.

    Args:
        account: time that drafts may lose.
        costs: costs of rounds.
        members: the drafters, in the order of the drafter's members, by whether they are for greedy requests.
    """

    account: Account
    costs: LiveCosts
    members: dict[bool, list[Member]] = field(default_factory=lambda: {True: [], False: []})

    @property
    def only_models(self) -> bool:
        """True if models make all drafts.

        A model can draft in every round, and only drafts change what is known of it. A lookup may
        find something in any round.
        """
        return not any(member.looks_up for member in self.members[True])

    @property
    def all_members(self) -> list[Member]:
        """The members for greedy requests and those for sampled ones."""
        return [*self.members[True], *self.members[False]]

    @property
    def learned(self) -> dict[str, Any]:
        """The beliefs without the target's own times, ready for JSON."""
        return {
            "drafts": self.costs.as_dict(),
            "members": {
                member.key: {
                    "acceptance": member.acceptance.as_dict(),
                    "trials": member.trials.learned,
                }
                for member in self.all_members
            },
            "account": self.account.learned,
        }

    def restore(self, learned: Any) -> None:
        """Start from the beliefs that `learned` returned."""
        self.costs.restore(learned["drafts"])
        for member in self.all_members:
            if known := learned["members"].get(member.key):
                member.acceptance.restore(known["acceptance"])
                member.trials.restore(known["trials"])
        self.account.restore(learned["account"])

    def forget(self, account: Account) -> None:
        """Start afresh with an account; measurements from before the first request stay."""
        self.account = account
        self.costs.forget()
        for member in self.all_members:
            member.forget()

    def given_up(self) -> list[str]:
        """One sentence on each drafter that was tried and does not pay."""
        return [
            member.given_up(self.costs.token_share(member.name, member.looks_up, member.share))
            for member in self.all_members
            if member.is_given_up
        ]

    def learn_times(
        self,
        batch_size: int,
        offers: Sequence[Offer],
        depth: float,
        seconds: Sequence[float],
        cold: bool,
    ) -> tuple[float, float]:
        """Learn from the drafting times of rounds; return seconds of drafts and of prompts before them.

        Costs are only learned if a single drafter has drafted. Time beyond the usual, an
        interruption, is left out of the result.

        Args:
            batch_size: number of requests.
            offers: the offers that were chosen.
            depth: mean depth of each round's deepest draft.
            seconds: drafting time of each round.
            cold: the first draft ran cold, so that it says nothing of the costs of others.
        """
        member = offers[0].member
        if any(offer.member.name != member.name for offer in offers):
            return sum(seconds), 0.0
        waiting = [offer.pending for offer in offers]
        # Long prompts run one after the other, single tokens for the whole batch at once.
        pending = sum(waiting) if max(waiting) > MUCH else max(waiting)
        scale = max(offer.scale for offer in offers)
        scaled = [each / scale for each in seconds]
        drafting = before = 0.0
        parts = [(scaled[:1], True), (scaled[1:], False)] if cold else [(scaled, False)]
        for part, is_cold in parts:
            if part:
                own, prompt = self.costs.observe_draft(
                    member.name, member.looks_up, batch_size, depth, pending, part, is_cold
                )
                drafting, before, pending = drafting + own, before + prompt, 1
        for offer in offers:
            # The pending tokens have been run; later rounds use the same offer.
            offer.pending = min(offer.pending, 1)
        return scale * drafting, scale * before
