"""What a simulation counted, under one name a quantity, and how sure its means are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike

from forerun.checks import number
from forerun.theory.inputs import Floats
from forerun.theory.student import student_quantile

HIGHEST_COST = 1e9


@dataclass(frozen=True)
class Estimate:
    """A mean or ratio of means.

    Args:
        value: the estimate.
        standard_error: of it; NaN for a single round.
        degrees: of freedom of the error: the rounds or batches that it was found from, less one;
            infinitely many where it is known.
    """

    value: float
    standard_error: float
    degrees: float = field(default=math.inf, compare=False)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Where the true value lies with probability `level`, by Student's t.

        It holds for many rounds. Where they depend on each other it is a little too narrow, the
        more so the fewer they are.

        Raises:
            ConfigError: for a level outside [0, 1].
        """
        level = number(0.0, 1.0)("level", level)
        # A value without spread is certain at every level, one of a single round at none.
        margin = self.standard_error
        if margin > 0.0:
            margin *= student_quantile(level, self.degrees)
        return self.value - margin, self.value + margin


def ratio_of_means(above: ArrayLike, below: ArrayLike, batch: int = 1) -> Estimate:
    """mean(above) / mean(below) over rounds [n], its error by the delta method.

    Rounds that depend on their neighbours are summed in batches, which do so less and less the
    longer they are.
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
    """`ratio_of_means` over rounds that follow each other in one text, or under an adaptive rule.

    A round begins where the one before it has left context and length, so easy rounds come
    together, and taking them for independent would understate the error. Batches of sqrt(n) rounds
    grow longer than any memory that fades, and more at the same time.
    """
    found = ratio_of_means(above, below, batch=math.isqrt(np.size(above)))
    # A few batches may agree by chance, as if there were no error at all.
    least = ratio_of_means(above, below).standard_error
    return replace(found, standard_error=max(found.standard_error, least))


@dataclass(frozen=True)
class RoundCost:
    """What rounds cost, in plain target forwards.

    Args:
        cost_ratio: of one draft forward.
        verification_cost: of a target forward, by the number of tokens that it takes, the newest
            committed one included; None is 1 for any number.

    Raises:
        ConfigError: for costs that are negative, NaN or above 1e9, or a target forward for nothing.
    """

    cost_ratio: float
    verification_cost: Callable[[int], float] | None = None

    def __post_init__(self) -> None:
        number(0.0, HIGHEST_COST)("cost_ratio", self.cost_ratio)

    def of(self, draft_calls: int, drafted: int) -> float:
        """The cost of a round with so many draft forwards that drafted so many tokens."""
        checking = 1.0 if self.verification_cost is None else self.verification_cost(drafted + 1)
        number(0.0, HIGHEST_COST, above=True)("verification_cost", checking)
        return float(self.cost_ratio * draft_calls + checking)


@dataclass(frozen=True)
class Round:
    """One round.

    Args:
        token_ids: what it emitted: the accepted tokens and one more.
        widths: how many tokens were drafted at each depth; () is a plain round.
        accepted: how many drafted tokens were accepted.
        draft_calls: forward passes of the draft model, one a depth.
        cost: in plain target forwards.
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
        """How many tokens could have been accepted."""
        return len(self.widths)


@dataclass(frozen=True)
class Simulation:
    """The outcome of a loop.

    Everything but `token_ids` counts whole rounds: the last one may emit more than was asked for,
    and a count cut off there would favour short rounds.

    Args:
        token_ids: the tokens asked for.
        rounds: one entry a forward pass of the target.
    """

    token_ids: tuple[int, ...]
    rounds: tuple[Round, ...]

    @property
    def target_calls(self) -> int:
        """Forward passes of the target: the rounds."""
        return len(self.rounds)

    @property
    def draft_calls(self) -> int:
        """Forward passes of the draft model, one for all nodes of a depth."""
        return sum(entry.draft_calls for entry in self.rounds)

    @property
    def drafted(self) -> int:
        """Drafted tokens."""
        return sum(entry.drafted for entry in self.rounds)

    @property
    def accepted(self) -> int:
        """Drafted tokens that were accepted."""
        return sum(entry.accepted for entry in self.rounds)

    @property
    def bonus(self) -> int:
        """Tokens drawn after a whole draft was accepted."""
        return sum(entry.accepted == entry.depth > 0 for entry in self.rounds)

    @property
    def recovered(self) -> int:
        """Tokens drawn from a residual after a rejection."""
        return sum(entry.accepted < entry.depth for entry in self.rounds)

    @property
    def plain(self) -> int:
        """Tokens of rounds without a draft."""
        return sum(entry.depth == 0 for entry in self.rounds)

    @property
    def emitted(self) -> int:
        """All tokens of all rounds: accepted + recovered + bonus + plain."""
        return sum(len(entry.token_ids) for entry in self.rounds)

    @property
    def cost(self) -> float:
        """In plain target forwards."""
        return math.fsum(entry.cost for entry in self.rounds)

    @property
    def tokens_per_round(self) -> float:
        """Tokens per target forward, the recovered and bonus tokens included."""
        return self.emitted / self.target_calls

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted tokens; 0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tested_acceptance(self) -> float:
        """Depths passed / depths tested: the estimate of alpha; 0 where nothing was tested."""
        tested = sum(self.tested_by_position)
        return self.accepted / tested if tested else 0.0

    @property
    def tokens_per_drafted(self) -> float:
        """Tokens / drafted tokens, which some texts call average acceptance; inf without drafts."""
        return self.emitted / self.drafted if self.drafted else math.inf

    @property
    def speedup(self) -> float:
        """The cost of as many plain tokens / the cost of these."""
        return self.emitted / self.cost

    @property
    def drafted_by_position(self) -> tuple[int, ...]:
        """Rounds that drafted so deep: entry i for the (i + 1)-th token of a path."""
        return self._rounds_with([entry.depth for entry in self.rounds])

    @property
    def tested_by_position(self) -> tuple[int, ...]:
        """Rounds that tested a token there: drafted so deep, and all before it accepted."""
        return self._rounds_with([min(r.accepted + 1, r.depth) for r in self.rounds])

    @property
    def accepted_by_position(self) -> tuple[int, ...]:
        """Rounds that accepted a token there."""
        return self._rounds_with([entry.accepted for entry in self.rounds])

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """Accepted / drafted so deep, as serving engines report it: it falls with the position."""
        pairs = zip(self.accepted_by_position, self.drafted_by_position, strict=True)
        return tuple(accepted / drafted for accepted, drafted in pairs)

    def tokens_estimate(self) -> Estimate:
        """`tokens_per_round` with its standard error."""
        return ratio_of_dependent_means(self._emissions(), np.ones(len(self.rounds)))

    def speedup_estimate(self, cost_ratio: float | None = None) -> Estimate:
        """`speedup` with its standard error.

        Args:
            cost_ratio: what a draft forward costs instead, where the target's cost one each.

        Raises:
            ConfigError: for a cost ratio out of range.
        """
        if cost_ratio is None:
            costs = [entry.cost for entry in self.rounds]
        else:
            price = RoundCost(cost_ratio)
            costs = [price.of(entry.draft_calls, entry.drafted) for entry in self.rounds]
        return ratio_of_dependent_means(self._emissions(), costs)

    def _emissions(self) -> Floats:
        return np.array([len(entry.token_ids) for entry in self.rounds], dtype=np.float64)

    def _rounds_with(self, reach: Sequence[int]) -> tuple[int, ...]:
        """How many entries of `reach` go beyond each position that was ever drafted."""
        deepest = max((entry.depth for entry in self.rounds), default=0)
        return tuple(sum(far > position for far in reach) for position in range(deepest))
