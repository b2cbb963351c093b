"""Simulation of many rounds in which every tested token is accepted with the same probability.

The assumptions are those of `formulas`, but rounds are drawn. The simulation checks the formulas, and
covers an adaptive length, which has no formula.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from forerun.measure.intervals import Estimate, ratio_of_dependent_means, ratio_of_means
from forerun.options import check
from forerun.simulation.rounds import RelativeCost
from forerun.theory.adaptive import AdaptiveLength

MOST_ROUNDS = 1 << 26

Counts = NDArray[np.int64]


class UniformSource(Protocol):
    """A generator of uniforms, such as numpy.random.default_rng or numpy.random.RandomState."""

    def random(self, size: int, /) -> Any: ...


@dataclass(frozen=True)
class IndependentRounds:
    """Result of simulating independent rounds.

    Args:
        tokens: tokens per round, the recovered or bonus token included.
        speedup: speed-up over plain decoding of as many tokens.
        acceptance_rate: accepted / drafted tokens; 0 if nothing was drafted.
        mean_length: drafted tokens per round.
    """

    tokens: Estimate
    speedup: Estimate
    acceptance_rate: float
    mean_length: float


def simulate_independent(
    acceptance: float,
    length: int | AdaptiveLength,
    cost_ratio: float,
    rounds: int,
    rng: UniformSource,
    *,
    verification_cost: Callable[[int], float] | None = None,
) -> IndependentRounds:
    """Draw rounds of chains, and estimate their means with confidence intervals.

    Args:
        acceptance: alpha, the probability that a tested token is accepted.
        length: tokens drafted per round, or an adaptive rule, which is copied. Rounds under an adaptive
            rule depend on each other, so their errors are estimated from batches.
        cost_ratio, verification_cost: costs as in `RelativeCost`.

    Raises:
        ConfigError: for numbers out of range.
    """
    alpha = check("acceptance", acceptance, float, ge=0.0, le=1.0)
    rounds = check("rounds", rounds, int, ge=1, le=MOST_ROUNDS)
    cost = RelativeCost(cost_ratio, verification_cost)
    if isinstance(length, AdaptiveLength):
        drafted, accepted = _adaptive_rounds(alpha, length, rounds, rng)
        ratio = ratio_of_dependent_means
    else:
        drafted = np.full(rounds, check("length", length, int, ge=0, le=1 << 16))
        accepted = _fixed_rounds(alpha, int(drafted[0]), rounds, rng)
        ratio = ratio_of_means
    price = {int(depth): cost.of(int(depth), int(depth)) for depth in np.unique(drafted)}
    spent = np.array([price[depth] for depth in drafted.tolist()])
    total = int(drafted.sum())
    return IndependentRounds(
        tokens=ratio(accepted + 1, np.ones(rounds)),
        speedup=ratio(accepted + 1, spent),
        acceptance_rate=int(accepted.sum()) / total if total else 0.0,
        mean_length=total / rounds,
    )


def _fixed_rounds(alpha: float, length: int, rounds: int, rng: UniformSource) -> Counts:
    """Number of accepted tokens by round, [rounds]; a token is tested if all before it passed."""
    accepted = np.zeros(rounds, dtype=np.int64)
    standing = np.arange(rounds)
    for _ in range(length):
        standing = standing[np.asarray(rng.random(len(standing))) < alpha]
        accepted[standing] += 1
    return accepted


def _adaptive_rounds(
    alpha: float, length: AdaptiveLength, rounds: int, rng: UniformSource
) -> tuple[Counts, Counts]:
    """Numbers of drafted and accepted tokens by round, [rounds] each."""
    rule = copy.deepcopy(length)
    drafted = np.empty(rounds, dtype=np.int64)
    # A round accepts the tokens before the first rejection, up to its own length.
    runs = _fixed_rounds(alpha, rule.limits.longest_draft, rounds, rng)
    accepted = np.empty_like(runs)
    depth = rule.length
    for index, run in enumerate(runs.tolist()):
        drafted[index], accepted[index] = depth, min(run, depth)
        depth = rule.observe(depth, min(run, depth))
    return drafted, accepted
