"""Knowledge of policy `auto` beyond the running requests: costs, drafters, and the budget for losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from forerun.policies.account import Account
from forerun.policies.costs import MUCH, LiveCosts
from forerun.policies.stretch import REPEATED, PlainRounds
from forerun.policies.texts import Choice, Member


@dataclass
class Beliefs:
    """Costs, drafters and the account; they outlive requests and, saved to disk, engines.

    Args:
        account: time that drafts may lose.
        costs: costs of rounds.
        members: the drafters, in the order of the drafter's members.
    """

    account: Account
    costs: LiveCosts
    members: list[Member] = field(default_factory=list)

    @property
    def only_models(self) -> bool:
        """True if models make all drafts.

        A model can draft in every round, and only drafts change what is known of it. A lookup may
        find something in any round.
        """
        return not any(member.looks_up for member in self.members)

    @property
    def learned(self) -> dict[str, Any]:
        """The beliefs without the target's own times, ready for JSON."""
        return {
            "drafts": self.costs.as_dict(),
            "members": {member.name: member.learned for member in self.members},
            "account": self.account.learned,
        }

    def restore(self, learned: Any) -> None:
        """Start from the beliefs that `learned` returned."""
        self.costs.restore(learned["drafts"])
        for member in self.members:
            if member.name in learned["members"]:
                member.restore(learned["members"][member.name])
        self.account.restore(learned["account"])

    def forget(self, account: Account) -> None:
        """Start afresh with an account; measurements from before the first request stay."""
        self.account, self.costs = account, self.costs.as_measured()
        for member in self.members:
            member.forget()

    def given_up(self) -> list[str]:
        """One sentence on each drafter that was tried and does not pay."""
        return [
            member.given_up(self.costs.token_share(member.name, member.looks_up, member.share))
            for member in self.members
            if member.is_given_up
        ]

    def learn_plain(self, plain: PlainRounds, accounts: Sequence[Account], counted: int) -> float:
        """Take in rounds without a draft and return the seconds that one takes by the updated costs.

        Args:
            plain: the rounds.
            accounts: accounts of the texts in them.
            counted: rounds that each of them counts as.
        """
        rounds = len(plain.seconds)
        weight = min(rounds * counted, REPEATED)
        self.costs.observe(plain.batch_size, 0, median(plain.seconds), weight)
        seconds = self.costs.plain_seconds(plain.batch_size)
        for account in (self.account, *accounts):
            account.settle(rounds, rounds, plain.planning / seconds)
        return seconds

    def learn_times(
        self,
        batch_size: int,
        choices: Sequence[Choice],
        depth: float,
        seconds: Sequence[float],
        cold: bool,
    ) -> tuple[float, float]:
        """Learn from the drafting times of rounds; return seconds of drafts and of prompts before them.

        Costs are only learned if a single member has drafted. Time beyond the usual, an
        interruption, is left out of the result.

        Args:
            batch_size: number of requests.
            choices: the choices that were made.
            depth: mean depth of each round's deepest draft.
            seconds: drafting time of each round.
            cold: the drafts ran cold, so that costs are not learned from them.
        """
        member = choices[0].offer.member
        if any(choice.offer.member is not member for choice in choices):
            return sum(seconds), 0.0
        waiting = [choice.offer.pending for choice in choices]
        # Long prompts run one after the other, single tokens for the whole batch at once.
        pending = sum(waiting) if max(waiting) > MUCH else max(waiting)
        scale = max(choice.offer.scale for choice in choices)
        scaled = [each / scale for each in seconds]
        drafting, before = self.costs.observe_draft(
            member.name, member.looks_up, batch_size, depth, pending, scaled, cold
        )
        for choice in choices:
            # The pending tokens have been run; later rounds of the stretch use the same offer.
            choice.offer.pending = min(choice.offer.pending, 1)
        return scale * drafting, scale * before
