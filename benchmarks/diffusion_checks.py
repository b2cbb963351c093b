"""Tests of whether speculative sampling is exact, step by step against the target's own passes.

The *innovation* of a step is (outcome - the target's mean) / standard deviation of the step. Given the
states before, it is standard normal, for any network. A coupling acts along one direction, from the draft's
mean to the target's. So innovations are tested along that direction, where every error must show, and as a
whole. The target's passes are computed again, at the states of the path.

If the law has a closed form (a Gaussian through a linear network), every marginal is tested too. Final
samples are compared with those of the plain sampler.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, stats
from torch import Tensor

from benchmarks.diffusion_targets import Law
from forerun.diffusion.settings import SpeculativeSamplingConfig
from forerun.diffusion.speculative_sampling import (
    CommittedSteps,
    Draws,
    Network,
    sample_plainly,
    sample_speculatively,
)
from forerun.diffusion.transitions import Transitions
from forerun.errors import ConfigError, UnsupportedModelError
from forerun.progress import report

ALPHA = 1e-4
"""Upper bound of the probability that an exact sampler fails, over all checks."""
LIMIT = ALPHA / 6
"""Share of ALPHA for each check; there are at most six."""
POWER = 0.99
_FEWEST = 50
_PROJECTIONS = 8
# Share of the noisiest step's deviation below which a network's rounding matters.
_LEAST_NOISE = 1e-4
# Offset between the seeds of the samples and those of the plain samples in the comparison.
_OTHERS = 1_000_003


@dataclass(frozen=True)
class Check:
    """Result of one test.

    Args:
        name: hypothesis that is tested.
        p_value: probability of this result or a worse one with an exact sampler.
        count: number of values tested.
        finds: smallest error that the test detects with probability POWER, in words.
    """

    name: str
    p_value: float
    count: int
    finds: str

    @property
    def passed(self) -> bool:
        """True if the result is compatible with an exact sampler."""
        return self.p_value >= LIMIT


@dataclass(frozen=True)
class SamplerProof:
    """Result of all checks of one setting.

    Args:
        checks: checks, each at its share of ALPHA.
        samples, steps: number of samples and of steps that were run.
        untested_steps: number of steps that add no noise, or too little to tell from rounding. Final samples
            and marginals are tested all the same.
        fewer: steps per sequential pass of the target.
        acceptance: share of drafted steps that were kept.
    """

    checks: Sequence[Check]
    samples: int
    steps: int
    untested_steps: int
    fewer: float
    acceptance: float

    @property
    def passed(self) -> bool:
        """True if no check found a defect."""
        return all(check.passed for check in self.checks)


@dataclass(frozen=True)
class ProofTarget:
    """A target and its sampler, as the subject of a proof.

    Args:
        network: target network.
        transitions: steps of its sampler.
        shape: shape of one sample.
        law: law of the sampler's states; None if it is not known.
    """

    network: Network
    transitions: Transitions
    shape: tuple[int, ...]
    law: Law | None = None


class Paths:
    """Record of all states of a batch, and of the draft means of its steps."""

    def __init__(self, start: Tensor, num_steps: int) -> None:
        self.states = torch.zeros(len(start), num_steps + 1, *start.shape[1:], dtype=torch.float64)
        self.states[:, 0] = start
        self.draft_means = torch.zeros_like(self.states[:, 1:])
        self.kept = torch.zeros(len(start), num_steps, dtype=torch.bool)

    def observe(self, committed: CommittedSteps) -> None:
        """Record the steps of a round."""
        rows, steps = committed.rows, committed.steps
        self.states[rows, steps + 1] = committed.outcomes
        self.draft_means[rows, steps] = committed.draft_means
        self.kept[rows, steps] = committed.kept


def prove(
    subject: ProofTarget, config: SpeculativeSamplingConfig, *, samples: int = 512, seed: int = 0
) -> SamplerProof:
    """Run speculative sampling and test it.

    Args:
        subject: target and sampler.
        config: settings of the draft and coupling.
        samples: number of samples to run; more find smaller errors.
        seed: seed of all randomness.

    Raises:
        ConfigError: for fewer than 50 samples, or a sampler without noise.
        UnsupportedModelError: for a network whose predictions are not finite.
    """
    if samples < _FEWEST:
        raise ConfigError(f"samples is {samples}; tests need at least {_FEWEST}.")
    transitions = subject.transitions
    tested = sum(is_tested(transitions, step) for step in range(len(transitions)))
    if float(transitions.std.max()) == 0:
        raise ConfigError(f"a sampler of {len(transitions)} steps adds no noise; give more steps.")
    draws = Draws.of(range(seed, seed + samples), len(transitions), subject.shape)
    paths = Paths(draws.start.double() * transitions.start, len(transitions))
    final, passes = sample_speculatively(
        subject.network,
        transitions,
        draws,
        config,
        progress=lambda done, total: report("speculative sampling", done, total),
        observer=paths.observe,
    )
    others = range(seed + _OTHERS, seed + _OTHERS + samples)
    plain = sample_plainly(
        subject.network, transitions, Draws.of(others, len(transitions), subject.shape)
    )
    for which in (paths.states, plain):
        if not bool(which.isfinite().all()):
            raise UnsupportedModelError("the network predicts numbers that are not finite.")
    checks = [*_innovations(subject, paths)]
    if subject.law is not None:
        checks += _marginals(subject.law, paths)
    checks += _two_samples(final, plain, seed)
    return SamplerProof(
        checks,
        samples,
        len(transitions),
        len(transitions) - tested,
        passes.fewer,
        passes.acceptance,
    )


def _innovations(subject: ProofTarget, paths: Paths) -> Iterator[Check]:
    """Checks of the innovations, as a whole and along the draft's direction, and of the kept steps.

    Only steps that add enough noise are tested.
    """
    transitions = subject.transitions
    along, squares, chances, kept, numbers = [], 0.0, [], 0, 0
    for step in range(len(transitions)):
        report("the target's own means", step + 1, len(transitions))
        if not is_tested(transitions, step):
            continue
        target = _means(subject, paths.states[:, step], step).flatten(1)
        std = transitions.std[step]
        innovations = (paths.states[:, step + 1].flatten(1) - target) / std
        squares += float(innovations.square().sum())
        numbers += innovations.numel()
        drafted = paths.draft_means[:, step].flatten(1)
        apart = (drafted - target) / std
        length = apart.norm(dim=1)
        # A distance due to rounding alone has no direction.
        real = length > 1e-3
        along.append(((innovations * apart).sum(1) / length)[real])
        chances.append(chance_kept(drafted, target, std)[real])
        kept += int(paths.kept[real, step].sum())
    yield Check(
        "innovations have the length of standard normal ones",
        _two_sided(stats.chi2, squares, numbers),
        numbers,
        f"a deviation wrong by {_shift_found() / math.sqrt(2 * numbers):.1e} of its own size",
    )
    if not len(torch.cat(along)):
        return  # The draft equalled the target everywhere.
    values = torch.cat(along).numpy()
    yield Check(
        "innovations along the draft's direction are standard normal",
        float(stats.kstest(values, "norm").pvalue),
        len(values),
        f"a shift along it by {_shift_found_by_ks(len(values)):.1e} of a step's deviation",
    )
    chance = torch.cat(chances).numpy()
    yield Check(
        "as many steps are kept as a maximal coupling keeps",
        _count_p_value(kept, chance),
        len(chance),
        f"a share of kept steps off by about {_share_found(chance):.1e}",
    )


def is_tested(transitions: Transitions, step: int) -> bool:
    """True if a step adds enough noise to tell its innovation from the network's rounding."""
    return float(transitions.std[step]) > _LEAST_NOISE * float(transitions.std.max())


def _marginals(law: Law, paths: Paths) -> Iterator[Check]:
    """Checks of variance and mean of every intermediate state, against a law in closed form."""
    lengths, means = [], []
    samples, steps = len(paths.states), paths.states.shape[1] - 1
    dimensions = paths.states[0, 0].numel()
    for step in range(1, steps + 1):
        whitened = law.whiten(step, paths.states[:, step].flatten(1))
        lengths.append(_two_sided(stats.chi2, float(whitened.square().sum()), whitened.numel()))
        mean = whitened.mean(0) * math.sqrt(samples)
        means.append(float(stats.chi2.sf(float(mean.square().sum()), dimensions)))
    # Bonferroni correction over the steps, which depend on each other.
    limit = LIMIT / steps
    spread = _shift_found(limit) / math.sqrt(2 * samples * dimensions)
    yield Check(
        "every marginal has the variance of its closed form",
        min(1.0, min(lengths) * steps),
        samples,
        f"a deviation wrong by {spread:.1e} of its own size",
    )
    yield Check(
        "every marginal has the mean of its closed form",
        min(1.0, min(means) * steps),
        samples,
        f"a mean off by {_mean_found(samples, dimensions, limit):.1e} deviations in all",
    )


def _two_samples(ours: Tensor, plain: Tensor, seed: int) -> Iterator[Check]:
    """Check of final samples against the plain sampler's with other seeds, by random projections."""
    ours, plain = ours.flatten(1), plain.flatten(1)
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(_PROJECTIONS, ours.shape[1], generator=generator, dtype=torch.float64)
    values = [
        float(stats.ks_2samp((ours @ direction).numpy(), (plain @ direction).numpy()).pvalue)
        for direction in directions
    ]
    shift = _shift_found_by_ks(len(ours) / 2, LIMIT / _PROJECTIONS)
    yield Check(
        "final samples are like those of the plain sampler",
        min(1.0, min(values) * len(values)),
        len(ours),
        f"a shift by {shift:.2f} of their deviation along one of {_PROJECTIONS} random directions",
    )


def _means(subject: ProofTarget, states: Tensor, step: int) -> Tensor:
    """The target's means of a step from given states, by passes of the target itself."""
    transitions = subject.transitions
    rows = torch.arange(len(states))
    steps = torch.full_like(rows, step)
    with torch.no_grad():
        output = subject.network(
            transitions.scaled(steps, states).float(), transitions.timesteps[steps], rows
        )
    return transitions.mean(steps, states, output.double())


def _two_sided(law: Any, value: float, degrees: int) -> float:
    return float(2 * min(law.cdf(value, degrees), law.sf(value, degrees)))


def _count_p_value(count: int, chances: NDArray[np.float64]) -> float:
    """Upper bound of the p-value of a count of independent events with given probabilities.

    It is Chernoff's bound for the rarer of the two outcomes, which holds for small counts too.
    """
    mean = float(chances.sum())
    if mean > len(chances) / 2:
        count, mean = len(chances) - count, len(chances) - mean
    if count == mean:
        return 1.0
    exponent = count - mean - (count * math.log(count / mean) if count and mean else 0.0)
    return min(1.0, 2 * math.exp(exponent)) if mean else 0.0


def _shift_found(limit: float = LIMIT) -> float:
    """Shift of one standard normal number that a two-sided test detects with probability POWER."""
    return float(stats.norm.isf(limit / 2) + stats.norm.isf(1 - POWER))


def _shift_found_by_ks(count: float, limit: float = LIMIT) -> float:
    """Shift of `count` standard normal numbers that a Kolmogorov-Smirnov test detects so often.

    It is (critical distance + variation) / distance caused by a unit shift, for small shifts.
    """
    critical = math.sqrt(math.log(2 / limit) / 2)
    varies = float(stats.norm.isf(1 - POWER)) / 2
    return (critical + varies) / math.sqrt(count) / float(stats.norm.pdf(0))


def _mean_found(samples: int, dimensions: int, limit: float) -> float:
    """Length of a shift of the mean, in deviations, that a chi-squared test detects with POWER."""
    critical = float(stats.chi2.isf(limit, dimensions))

    def missing(shift: float) -> float:
        return float(stats.ncx2.sf(critical, dimensions, shift) - POWER)

    return math.sqrt(float(optimize.brentq(missing, 1e-6, 100 + 10 * critical)) / samples)


def _share_found(chances: NDArray[np.float64]) -> float:
    """Approximate error of a share that `_count_p_value` detects with probability POWER."""
    mean = min(float(chances.sum()), len(chances) - float(chances.sum()))
    spread = math.sqrt(2 * math.log(2 / LIMIT)) + float(stats.norm.isf(1 - POWER))
    return spread * math.sqrt(max(mean, 1.0)) / len(chances)


def chance_kept(draft_mean: Tensor, target_mean: Tensor, std: Tensor) -> Tensor:
    """Probability that a draw is kept, `[N]`: 1 - total variation between the two Gaussians.

    The arguments are those of `couple`, with a `std` above 0.
    """
    apart = ((draft_mean - target_mean) / std).norm(dim=-1)
    chance: Tensor = torch.special.erfc(apart / (2 * math.sqrt(2)))
    return chance
