"""What policy `auto` knows apart from the requests that run: costs, drafters, and what may be lost."""

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
    """Costs, drafters and the account, which outlive requests and, on disk, engines.

    Args:
        account: what drafts may lose.
        costs: of rounds.
        members: the drafters, by their places.
    """

    account: Account
    costs: LiveCosts
    members: list[Member] = field(default_factory=list)

    @property
    def only_models(self) -> bool:
        """Whether models make all drafts: there is something to draft in every round, and what is known of it
        changes by drafts alone, while a lookup may find something in any round."""
        return not any(member.looks_up for member in self.members)

    @property
    def learned(self) -> dict[str, Any]:
        """Ready for JSON; the target's own times apart."""
        return {
            "drafts": self.costs.as_dict(),
            "members": {member.name: member.learned for member in self.members},
            "account": self.account.learned,
        }

    def restore(self, learned: Any) -> None:
        """Begin with what `learned` has given."""
        self.costs.restore(learned["drafts"])
        for member in self.members:
            if member.name in learned["members"]:
                member.restore(learned["members"][member.name])
        self.account.restore(learned["account"])

    def forget(self, account: Account) -> None:
        """Begin anew with an account; what was measured before the first request stays."""
        self.account, self.costs = account, self.costs.as_measured()
        for member in self.members:
            member.forget()

    def given_up(self) -> list[str]:
        """In a sentence each: drafters that were tried and do not pay."""
        return [
            member.given_up(self.costs.token_share(member.name, member.looks_up, member.share))
            for member in self.members
            if member.is_given_up
        ]

    def learn_plain(self, plain: PlainRounds, accounts: Sequence[Account], counted: int) -> float:
        """Take in rounds without a draft, for these accounts of texts too, each of which counts as several;
        the seconds of one by what is believed then."""
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
        """Note what the drafts of some rounds took, where one member has drafted alone; the seconds that
        count, of all drafts and of what had to be run before: an interruption is not the drafter's.

        Args:
            batch_size: requests.
            choices: those that were made.
            depth: of a round's deepest draft, on average.
            seconds: by round.
            cold: whether they teach nothing of costs.
        """
        member = choices[0].offer.member
        if any(choice.offer.member is not member for choice in choices):
            return sum(seconds), 0.0
        waiting = [choice.offer.pending for choice in choices]
        # Prompts are run for all of the batch.
        pending = sum(waiting) if max(waiting) > MUCH else max(waiting)
        scale = max(choice.offer.scale for choice in choices)
        scaled = [each / scale for each in seconds]
        drafting, before = self.costs.observe_draft(
            member.name, member.looks_up, batch_size, depth, pending, scaled, cold
        )
        for choice in choices:
            # What it had to run has been run: a later round of a stretch has the same offer.
            choice.offer.pending = min(choice.offer.pending, 1)
        return scale * drafting, scale * before
