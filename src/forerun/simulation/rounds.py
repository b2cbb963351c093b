"""Counts and costs of a simulation's rounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from forerun.measure.intervals import Estimate, ratio_of_dependent_means
from forerun.options import check

HIGHEST_COST = 1e9


@dataclass(frozen=True)
class RelativeCost:
    """Costs of rounds, in plain target forwards.

    Args:
        cost_ratio: cost of one draft forward, which drafts all nodes of a depth together.
        verification_cost: cost of a target forward as a function of its number of tokens, the newest
            committed token included; None for a cost of 1.

    Raises:
        ConfigError: for a draft forward below 0, a target forward of 0 or less, and costs that are NaN or
            above 1e9.
    """

    cost_ratio: float = 0.0
    verification_cost: Callable[[int], float] | None = None

    def __post_init__(self) -> None:
        check("cost_ratio", self.cost_ratio, float, ge=0.0, le=HIGHEST_COST)

    def of(self, draft_calls: int, drafted: int) -> float:
        """Cost of a round with `draft_calls` draft forwards and `drafted` drafted tokens."""
        checking = 1.0
        if self.verification_cost is not None:
            cost = self.verification_cost(drafted + 1)
            checking = check("verification_cost", cost, float, gt=0.0, le=HIGHEST_COST)
        return self.cost_ratio * draft_calls + checking


@dataclass(frozen=True)
class SimulatedRound:
    """One round of a simulation.

    Args:
        token_ids: emitted tokens: the accepted ones and one more.
        widths: number of drafted tokens at each depth; () is a plain round.
        accepted: number of accepted tokens.
        draft_calls: number of forward passes of the draft model, one per depth.
        cost: cost in plain target forwards.
    """

    token_ids: tuple[int, ...]
    widths: tuple[int, ...]
    accepted: int
    draft_calls: int
    cost: float

    @property
    def drafted(self) -> int:
        return sum(self.widths)

    @property
    def depth(self) -> int:
        """Number of tokens that could have been accepted."""
        return len(self.widths)


@dataclass(frozen=True)
class Simulation:
    """Result of a simulated decoding loop.

    All counts are over whole rounds. The last round may emit more tokens than requested, and cutting its
    count would favour short rounds.

    Args:
        token_ids: emitted tokens, as many as requested.
        rounds: rounds, one per forward pass of the target.
    """

    token_ids: tuple[int, ...]
    rounds: tuple[SimulatedRound, ...]

    @property
    def target_calls(self) -> int:
        """Number of forward passes of the target, which is the number of rounds."""
        return len(self.rounds)

    @property
    def draft_calls(self) -> int:
        """Number of forward passes of the draft model, one for all nodes of a depth."""
        return sum(entry.draft_calls for entry in self.rounds)

    @property
    def drafted(self) -> int:
        """Number of drafted tokens."""
        return sum(entry.drafted for entry in self.rounds)

    @property
    def accepted(self) -> int:
        """Number of accepted tokens."""
        return sum(entry.accepted for entry in self.rounds)

    @property
    def bonus(self) -> int:
        """Number of tokens drawn after a whole draft was accepted."""
        return sum(entry.accepted == entry.depth > 0 for entry in self.rounds)

    @property
    def recovered(self) -> int:
        """Number of tokens drawn from a residual after a rejection."""
        return sum(entry.accepted < entry.depth for entry in self.rounds)

    @property
    def plain(self) -> int:
        """Number of tokens from rounds without a draft."""
        return sum(entry.depth == 0 for entry in self.rounds)

    @property
    def emitted(self) -> int:
        """Number of tokens of all rounds: accepted + recovered + bonus + plain."""
        return sum(len(entry.token_ids) for entry in self.rounds)

    @property
    def cost(self) -> float:
        """Cost of all rounds, in plain target forwards."""
        return math.fsum(entry.cost for entry in self.rounds)

    @property
    def tokens_per_round(self) -> float:
        """Tokens per target forward, the recovered and bonus tokens included."""
        return self.emitted / self.target_calls

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted tokens; 0 if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tested_acceptance(self) -> float:
        """Depths passed / depths tested, which estimates alpha; 0 if nothing was tested."""
        tested = sum(min(entry.accepted + 1, entry.depth) for entry in self.rounds)
        return self.accepted / tested if tested else 0.0

    @property
    def tokens_per_drafted(self) -> float:
        """Tokens / drafted tokens, called average acceptance in some texts; inf without drafts."""
        return self.emitted / self.drafted if self.drafted else math.inf

    @property
    def speedup(self) -> float:
        """Cost of plain decoding of as many tokens / cost of these rounds."""
        return self.emitted / self.cost

    def speedup_estimate(self, cost_ratio: float | None = None) -> Estimate:
        """The speed-up with its standard error.

        Args:
            cost_ratio: another cost of a draft forward, with each forward of the target at cost 1; None
                for the rounds' own costs.

        Raises:
            ConfigError: for a cost ratio out of range.
        """
        if cost_ratio is None:
            costs = [entry.cost for entry in self.rounds]
        else:
            price = RelativeCost(cost_ratio)
            costs = [price.of(entry.draft_calls, entry.drafted) for entry in self.rounds]
        return ratio_of_dependent_means([len(entry.token_ids) for entry in self.rounds], costs)
