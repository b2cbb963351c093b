"""Counts of a simulation's rounds, and estimates of their means with errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from forerun.options import check

HIGHEST_COST = 1e9


@dataclass(frozen=True)
class Estimate:
    """A mean or ratio of means.

    Args:
        value: value of the estimate.
        standard_error: standard error of the estimate; NaN for a single round.
        degrees: degrees of freedom of the error, which is the number of rounds or batches minus one;
            infinite if the error is known.
    """

    value: float
    standard_error: float
    degrees: float = field(default=math.inf, compare=False)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Confidence interval of the true value at `level`, by Student's t.

        The interval is valid for many rounds. For dependent rounds it is a little too narrow, the more so
        the fewer they are.

        Raises:
            ConfigError: for a level outside [0, 1].
        """
        level = check("level", level, float, ge=0.0, le=1.0)
        # Without spread the value is certain at every level; with a single round (NaN) at none.
        margin = self.standard_error
        if margin > 0.0:
            margin *= float(special.stdtrit(self.degrees, 0.5 + 0.5 * level))
        return self.value - margin, self.value + margin


def ratio_of_means(above: ArrayLike, below: ArrayLike, batch: int = 1) -> Estimate:
    """Estimate of mean(above) / mean(below) over rounds [n], with its error by the delta method.

    Rounds that depend on their neighbours are summed in batches of `batch` rounds. The longer a batch, the
    less it depends on its neighbours.
    """
    top, bottom = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    value = float(top.mean() / bottom.mean())
    count = len(top) // batch
    if count < 2:
        return Estimate(value, math.nan)
    off = (top - value * bottom)[: count * batch].reshape(count, batch).sum(-1)
    scale = batch * float(bottom.mean())
    return Estimate(value, float(np.std(off, ddof=1)) / scale / math.sqrt(count), count - 1)


def ratio_of_dependent_means(above: ArrayLike, below: ArrayLike) -> Estimate:
    """Estimate as `ratio_of_means`, for dependent rounds: of one text, or under an adaptive rule.

    A round inherits context and length from the round before, so easy rounds come in clusters. Treating
    them as independent would understate the error. With batches of sqrt(n) rounds, both the length and
    the number of batches grow with n.
    """
    estimate = ratio_of_means(above, below, batch=math.isqrt(np.size(above)))
    # A few batches may agree by chance, which would give an error of zero.
    least = ratio_of_means(above, below).standard_error
    return replace(estimate, standard_error=max(estimate.standard_error, least))


@dataclass(frozen=True)
class RoundCost:
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
class Round:
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
    rounds: tuple[Round, ...]

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
            price = RoundCost(cost_ratio)
            costs = [price.of(entry.draft_calls, entry.drafted) for entry in self.rounds]
        return ratio_of_dependent_means([len(entry.token_ids) for entry in self.rounds], costs)
