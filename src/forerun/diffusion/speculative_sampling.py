"""Speculative sampling for diffusion: drafts several denoising steps, and checks them in one batched pass.

It is exact: each sample has the distribution of the plain stochastic sampler (De Bortoli et al., arXiv
2501.05370). A step of such a sampler draws from a Gaussian whose mean needs a pass of the network. The
means of a draft come from earlier predictions, without a pass. The network then runs at all drafted samples
at once, and a reflection-maximal coupling turns each drafted step into a step of the target, mostly
unchanged. A round ends with the first step that is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from forerun.diffusion.settings import SpeculativeSamplingConfig
from forerun.diffusion.transitions import Transitions
from forerun.errors import ConfigError

Coupling = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Function from draft means, target means, deviations, noise and uniform numbers to draws and a mask.

The mask is True for draws equal to the draft's; see `couple`.
"""
Network = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A denoiser with its guidance: predictions `[N, ...]` from samples, timesteps and rows.

Samples `[N, ...]` are scaled as the network takes them, each with its own timestep, `[N]`. The row of the
batch that a sample belongs to, `[N]`, selects its label or prompt.
"""


@dataclass
class Passes:
    """Costs and acceptance of a sampling run.

    Args:
        steps: number of steps of the sampler.
        sequential: number of sequential passes of the network.
        evaluations: number of samples in all passes.
        student: number of passes of the student.
        drafted, kept: numbers of drafted and kept steps by place in their draft. After a step that is not
            kept, no further step of the draft is.
    """

    steps: int = 0
    sequential: int = 0
    evaluations: int = 0
    student: int = 0
    drafted: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)

    @property
    def fewer(self) -> float:
        """Steps per sequential pass, which is the factor by which passes are fewer than in plain sampling."""
        return self.steps / max(self.sequential, 1)

    @property
    def acceptance(self) -> float:
        """Share of drafted steps that were kept."""
        return sum(self.kept) / max(sum(self.drafted), 1)


@dataclass(frozen=True)
class Draws:
    """Random numbers of a batch; each sample's depend on its own seed alone.

    Every step has its own noise, however often it is drafted. So the noise behind a decision is never used
    to draw a later step.

    Args:
        start: initial noise as in `pipelines.draw_noise`, standard normal, `[B, ...]`.
        noise: noise of each step, standard normal, `[B, K, ...]`.
        uniform: uniform number of each step, `[B, K]`.
    """

    start: Tensor
    noise: Tensor
    uniform: Tensor

    @classmethod
    def of(cls, seeds: Sequence[int], num_steps: int, shape: Sequence[int]) -> Draws:
        """Draw the random numbers for samples of a shape `[...]`."""
        start, noise, uniform = [], [], []
        for seed in seeds:
            # All from one stream, because two streams of one seed would not be independent.
            generator = Generator().manual_seed(seed)
            start.append(torch.randn(1, *shape, generator=generator)[0])
            noise.append(torch.randn(num_steps, *shape, generator=generator, dtype=torch.float64))
            uniform.append(torch.rand(num_steps, generator=generator, dtype=torch.float64))
        return cls(torch.stack(start), torch.stack(noise), torch.stack(uniform))

    def check(self, transitions: Transitions) -> None:
        """Check that the random numbers match the sampler's number of steps.

        Raises:
            ConfigError: if they do not.
        """
        if self.uniform.shape[1] != len(transitions):
            raise ConfigError(
                f"draws of {self.uniform.shape[1]} steps do not fit a sampler of {len(transitions)}."
            )


@dataclass(frozen=True)
class CommittedSteps:
    """N committed steps of a round.

    Args:
        rows, steps: sample and step index of each, `[N]`.
        draft_means: means that they were drafted around, `[N, ...]`; the target's if nothing was drafted.
        outcomes: samples after the steps, `[N, ...]`.
        kept: True for steps equal to the draft's, `[N]`.
    """

    rows: Tensor
    steps: Tensor
    draft_means: Tensor
    outcomes: Tensor
    kept: Tensor


Observer = Callable[[CommittedSteps], None]


@torch.no_grad()
def sample_plainly(network: Network, transitions: Transitions, draws: Draws) -> Tensor:
    """Sample plainly, with a pass for each step; speculative sampling has the same distribution.

    Args:
        network: network to run.
        transitions: steps of the sampler.
        draws: random numbers for as many steps.

    Returns:
        Samples `[B, ...]` in float64.

    Raises:
        ConfigError: for draws of another number of steps.
    """
    draws.check(transitions)
    samples = draws.start.double() * transitions.start
    rows = torch.arange(len(samples))
    for step in range(len(transitions)):
        steps = torch.full_like(rows, step)
        output = _run(network, transitions, steps, samples, rows)
        std = transitions.deviation(steps, samples)
        samples = transitions.mean(steps, samples, output) + std * draws.noise[:, step]
    return samples


@torch.no_grad()
def sample_speculatively(
    network: Network,
    transitions: Transitions,
    draws: Draws,
    config: SpeculativeSamplingConfig,
    progress: Callable[[int, int], None] | None = None,
    observer: Observer | None = None,
) -> tuple[Tensor, Passes]:
    """Sample with the same distribution as `sample_plainly`, in fewer sequential passes.

    Each sample of a batch advances at its own pace; finished samples leave the batch.

    Args:
        network, transitions, draws: as in `sample_plainly`.
        config: settings of the draft and coupling.
        progress: called with the number of steps done by the slowest sample, and the total number.
        observer: called with the committed steps of each round.

    Returns:
        Samples `[B, ...]` in float64, and the costs of the run.

    Raises:
        ConfigError: for draws of another number of steps.
    """
    draws.check(transitions)
    run = _Rounds(network, transitions, draws, config, observer)
    while run.active.numel():
        run.round()
        if progress is not None:
            progress(int(run.done.min()), len(transitions))
    return run.samples, run.passes


class _Rounds:
    """State of `sample_speculatively` between rounds."""

    def __init__(
        self,
        network: Network,
        transitions: Transitions,
        draws: Draws,
        config: SpeculativeSamplingConfig,
        observer: Observer | None,
    ) -> None:
        self.network, self.transitions = network, transitions
        self.draws, self.config, self.observer = draws, config, observer
        self.samples = draws.start.double() * transitions.start
        self.done = torch.zeros(len(self.samples), dtype=torch.long)
        self.passes = Passes(steps=len(transitions))
        # Clean sample of the last pass along each path, which every path has after the first round.
        self.clean: Tensor | None = None

    @property
    def active(self) -> Tensor:
        """Rows that are not finished."""
        return (self.done < len(self.transitions)).nonzero().flatten()

    def round(self) -> None:
        """Run one round: draft, check and couple."""
        rows = self.active
        drafted, means, valid = self._draft(rows)
        steps = self.done[rows] + torch.arange(len(drafted))[:, None]
        # Places beyond the last step are not run.
        outputs = torch.zeros_like(drafted)
        batch = rows.expand(len(drafted), -1)[valid]
        outputs[valid] = _run(self.network, self.transitions, steps[valid], drafted[valid], batch)
        self.passes.sequential += 1
        self.passes.evaluations += int(valid.sum())
        target = torch.zeros_like(drafted)
        target[valid] = self.transitions.mean(steps[valid], drafted[valid], outputs[valid])
        was_drafted = means is not None
        if means is None:  # Without an earlier prediction, the round is one plain step.
            means = target
        outcomes, kept = self._couple(steps, rows, valid, means, target)
        # Each sample advances to the first changed outcome, or to the last.
        last = torch.minimum(kept.long().cumprod(0).sum(0), valid.sum(0) - 1)
        stands = torch.arange(len(valid))[:, None] <= last
        if was_drafted:
            self._count(valid, kept & stands)
        if self.observer is not None:
            of = rows.expand(len(stands), -1)[stands]
            self.observer(
                CommittedSteps(of, steps[stands], means[stands], outcomes[stands], kept[stands])
            )
        self._remember(rows, steps, last, drafted, outputs)
        self.samples[rows] = outcomes[last, torch.arange(len(rows))]
        self.done[rows] += last + 1

    def _draft(self, rows: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Draft steps for some rows.

        Returns:
            Samples at which the network is to run, `[L, n, ...]`, the means of the steps from them (None
            for a plain step), and a mask of valid steps, `[L, n]`.
        """
        samples = self.samples[rows]
        first = self.config.student is None and self.clean is None
        length = 1 if first else self.config.num_draft_steps
        at, means, valid = [], [], []
        for place in range(length):
            steps = self.done[rows] + place
            inside = steps < len(self.transitions)
            if place and not inside.any():
                break
            steps = steps.clamp(max=len(self.transitions) - 1)
            at.append(samples)
            valid.append(inside)
            if first:
                return torch.stack(at), None, torch.stack(valid)
            output = self._guess(steps, samples, rows)
            mean = self.transitions.mean(steps, samples, output)
            means.append(mean)
            std = self.transitions.deviation(steps, samples)
            samples = mean + std * self.draws.noise[rows, steps]
        return torch.stack(at), torch.stack(means), torch.stack(valid)

    def _guess(self, steps: Tensor, samples: Tensor, rows: Tensor) -> Tensor:
        """The network's output as the draft predicts it."""
        if self.config.student is not None:
            self.passes.student += 1
            return _run(self.config.student, self.transitions, steps, samples, rows)
        assert self.clean is not None
        return self.transitions.output_for(steps, samples, self.clean[rows])

    def _couple(
        self, steps: Tensor, rows: Tensor, valid: Tensor, means: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Outcomes of all drafted steps, `[L, n, ...]`, and a mask of those as drafted, `[L, n]`."""
        own = rows.expand(len(steps), -1)[valid]
        noise, uniform = self.draws.noise[own, steps[valid]], self.draws.uniform[own, steps[valid]]
        std = self.transitions.std[steps[valid]][:, None]
        drawn, same = (self.config.coupling or couple)(
            means[valid].flatten(1), target[valid].flatten(1), std, noise.flatten(1), uniform
        )
        outcomes = torch.zeros_like(means)
        outcomes[valid] = drawn.view_as(means[valid])
        kept = torch.zeros_like(valid)
        kept[valid] = same
        return outcomes, kept

    def _remember(
        self, rows: Tensor, steps: Tensor, last: Tensor, drafted: Tensor, outputs: Tensor
    ) -> None:
        """Store the clean sample of the last pass along each path."""
        picked = (last, torch.arange(len(rows)))
        if self.clean is None:
            self.clean = torch.zeros_like(self.samples)
        self.clean[rows] = self.transitions.clean(steps[picked], drafted[picked], outputs[picked])

    def _count(self, drafted: Tensor, kept: Tensor) -> None:
        passes, missing = self.passes, len(drafted) - len(self.passes.drafted)
        passes.drafted += [0] * missing
        passes.kept += [0] * missing
        for place in range(len(drafted)):
            passes.drafted[place] += int(drafted[place].sum())
            passes.kept[place] += int(kept[place].sum())


def _run(
    network: Network, transitions: Transitions, steps: Tensor, samples: Tensor, rows: Tensor
) -> Tensor:
    """Outputs of a network in float64."""
    scaled = transitions.scaled(steps, samples).float()
    return network(scaled, transitions.timesteps[steps], rows).double()


def couple(
    draft_mean: Tensor, target_mean: Tensor, std: Tensor, noise: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """Turn `draft_mean + std * noise` into draws from the Gaussian around `target_mean`, mostly unchanged.

    A draw is kept with probability min(1, q/p), where p is the draft's density and q the target's, and
    otherwise mirrored in the plane between the means. The result has exactly the target's distribution, and
    no coupling keeps draws more often (Bou-Rabee, Eberle and Zimmer, arXiv 1805.00452; for diffusion: De
    Bortoli et al., arXiv 2501.05370).

    Args:
        draft_mean, target_mean: means, `[N, D]`.
        std: standard deviation of both in each dimension, `[N, 1]`; if 0, the outcome is the target's mean.
        noise: standard normal numbers, `[N, D]`.
        uniform: uniform numbers in [0, 1), independent of the noise, `[N]`.

    Returns:
        The draws `[N, D]`, and a mask of those equal to the draft's, `[N]`.
    """
    # Steps with non-finite draft means are drawn from the target. That choice depends on the past alone.
    usable = draft_mean.isfinite().all(-1, keepdim=True)
    draft_mean = torch.where(usable, draft_mean, target_mean)
    apart = draft_mean - target_mean
    moved = apart / torch.where(std > 0, std, 1.0)
    # log(q/p) at the draft's draw, which relative to the target's mean is noise + moved.
    log_ratio = -((noise * moved).sum(-1) + moved.square().sum(-1) / 2)
    equal = torch.log(uniform) < log_ratio
    equal = torch.where(std[:, 0] > 0, equal, ~apart.any(-1))
    length = moved.square().sum(-1, keepdim=True)
    along = (noise * moved).sum(-1, keepdim=True) / torch.where(length > 0, length, 1.0)
    mirrored = noise - 2 * along * moved
    drafted = draft_mean + std * noise
    drawn = torch.where(equal[:, None], drafted, target_mean + std * mirrored)
    return drawn, equal & usable[:, 0]
