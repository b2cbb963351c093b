"""Speculative sampling for diffusion: several denoising steps are drafted, one batched pass checks them.

Exact: each sample has the law of the plain stochastic sampler (De Bortoli et al., arXiv 2501.05370). A step
of such a sampler draws from a Gaussian whose mean takes a pass of the network. A draft's means come without
one, from predictions that are there already. The network then runs at all drafted samples at once, and a
reflection-maximal coupling (reflection.py) turns each drafted step into one of the target's: mostly the same
one. The first that it has to change is the last of its round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Generator, Tensor

from forerun.diffusion.reflection import Coupling, couple
from forerun.diffusion.transitions import Transitions
from forerun.errors import ConfigError

Draft = Literal["frozen", "extrapolated"]
DRAFTS: tuple[Draft, ...] = ("frozen", "extrapolated")


class Network(Protocol):
    """A denoiser, guidance included."""

    def __call__(self, samples: Tensor, timesteps: Tensor, rows: Tensor) -> Tensor:
        """Predictions, `[N, ...]`.

        Args:
            samples: `[N, ...]`, scaled as the network takes them.
            timesteps: of each, `[N]`.
            rows: of the batch that each belongs to, `[N]`: which label or prompt is its own.
        """
        ...


@dataclass(frozen=True)
class SpeculativeSamplingConfig:
    """How to draft.

    Args:
        num_draft_steps: denoising steps that a round drafts at most, which the network checks at once.
        draft: `frozen` drafts as if the network would find the clean sample that it found last;
            `extrapolated` goes on with the change between its last two.
        student: a cheaper network, which drafts step by step in place of these.
        coupling: with the arguments and results of `reflection.couple`; others are there to be tried, and
            `proof.prove` says whether one is exact.

    Raises:
        ConfigError: for another draft, or fewer than one step.
    """

    num_draft_steps: int = 8
    draft: Draft = "frozen"
    student: Network | None = None
    coupling: Coupling = couple

    def __post_init__(self) -> None:
        if self.num_draft_steps < 1:
            raise ConfigError(f"num_draft_steps is {self.num_draft_steps}; give at least 1.")
        if self.draft not in DRAFTS:
            raise ConfigError(f"draft is {self.draft!r}; give one of {', '.join(DRAFTS)}.")


@dataclass
class Passes:
    """What a sampling run took.

    Args:
        steps: of the sampler.
        sequential: passes of the network one after the other.
        evaluations: samples that they ran, over all passes.
        student: passes of the student.
        drafted, kept: steps, by place in their draft; what follows one that is not kept is not either.
    """

    steps: int = 0
    sequential: int = 0
    evaluations: int = 0
    student: int = 0
    drafted: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)

    @property
    def fewer(self) -> float:
        """Steps a sequential pass: how many times fewer passes than plain sampling takes."""
        return self.steps / max(self.sequential, 1)

    @property
    def acceptance(self) -> float:
        """The share of drafted steps that were kept."""
        return sum(self.kept) / max(sum(self.drafted), 1)


@dataclass(frozen=True)
class Draws:
    """The randomness of a batch: each sample's follows from its own seed alone.

    Every step has noise of its own, however often it is drafted: what a decision looks at is never
    what a later step is drawn from.

    Args:
        start: `[B, ...]`, standard normal, that of `pipelines.draw_noise`.
        noise: `[B, K, ...]`, standard normal.
        uniform: `[B, K]`.
    """

    start: Tensor
    noise: Tensor
    uniform: Tensor

    @classmethod
    def of(cls, seeds: Sequence[int], num_steps: int, shape: Sequence[int]) -> Draws:
        """For samples of a shape `[...]`."""
        start, noise, uniform = [], [], []
        for seed in seeds:
            # One stream, one after the other: two of the same seed would not be independent.
            generator = Generator().manual_seed(seed)
            start.append(torch.randn(1, *shape, generator=generator)[0])
            noise.append(torch.randn(num_steps, *shape, generator=generator, dtype=torch.float64))
            uniform.append(torch.rand(num_steps, generator=generator, dtype=torch.float64))
        return cls(torch.stack(start), torch.stack(noise), torch.stack(uniform))

    def check(self, transitions: Transitions) -> None:
        """Raise for randomness of another number of steps.

        Raises:
            ConfigError: then.
        """
        if self.uniform.shape[1] != len(transitions):
            raise ConfigError(
                f"draws of {self.uniform.shape[1]} steps do not fit a sampler of {len(transitions)}."
            )


@dataclass(frozen=True)
class Committed:
    """Steps of a round that stand, N of them.

    Args:
        rows, steps: whose and which, `[N]`.
        draft_means: that they were drafted around, `[N, ...]`; the target's own where nothing was drafted.
        outcomes: the samples after them, `[N, ...]`.
        kept: which are as drafted, `[N]`.
    """

    rows: Tensor
    steps: Tensor
    draft_means: Tensor
    outcomes: Tensor
    kept: Tensor


Progress = Callable[[int, int], None]
Observer = Callable[[Committed], None]


@torch.no_grad()
def sample_plainly(network: Network, transitions: Transitions, draws: Draws) -> Tensor:
    """The sampler as it is, a pass for each step: what speculation has the law of.

    Args:
        network: to run.
        transitions: its steps.
        draws: of as many steps.

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
    progress: Progress | None = None,
    observer: Observer | None = None,
) -> tuple[Tensor, Passes]:
    """The same law in fewer passes one after the other.

    Samples of a batch go ahead each at its own pace; those that are done leave the batch.

    Args:
        network, transitions, draws: those of `sample_plainly`.
        config: how to draft.
        progress: told the steps that the slowest sample has done, and all.
        observer: given the steps of each round.

    Returns:
        Samples `[B, ...]` in float64, and what they took.

    Raises:
        ConfigError: for draws of another number of steps.
    """
    draws.check(transitions)
    run = _Run(network, transitions, draws, config, observer)
    while run.active.numel():
        run.round()
        if progress is not None:
            progress(int(run.done.min()), len(transitions))
    return run.samples, run.passes


class _Run:
    """A batch on its way: what `sample_speculatively` keeps between rounds."""

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
        # The clean samples of the last two passes along each path, and the steps that they belong to.
        self.clean = torch.zeros(2, *self.samples.shape, dtype=torch.float64)
        self.clean_steps = torch.full((2, len(self.samples)), -1, dtype=torch.long)

    @property
    def active(self) -> Tensor:
        """The rows that are not done."""
        return (self.done < len(self.transitions)).nonzero().flatten()

    def round(self) -> None:
        """Draft, check, couple."""
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
        if means is None:  # Nothing was known yet: one plain step.
            means = target
        outcomes, kept = self._couple(steps, rows, valid, means, target)
        # Each sample goes on to the first outcome that was changed, or to the last.
        last = torch.minimum(kept.long().cumprod(0).sum(0), valid.sum(0) - 1)
        stands = torch.arange(len(valid))[:, None] <= last
        if was_drafted:
            self._count(valid, kept & stands)
        if self.observer is not None:
            of = rows.expand(len(stands), -1)[stands]
            self.observer(
                Committed(of, steps[stands], means[stands], outcomes[stands], kept[stands])
            )
        self._remember(rows, steps, last, drafted, outputs)
        self.samples[rows] = outcomes[last, torch.arange(len(rows))]
        self.done[rows] += last + 1

    def _draft(self, rows: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Samples at which the network is to run, `[L, n, ...]`, the means of the steps from them, and
        which of them are steps at all, `[L, n]`."""
        samples = self.samples[rows]
        first = self.config.student is None and bool((self.clean_steps[1, rows] < 0).any())
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
        """The output that the draft expects of the network."""
        if self.config.student is not None:
            self.passes.student += 1
            return _run(self.config.student, self.transitions, steps, samples, rows)
        clean = self.clean[1, rows]
        if self.config.draft == "extrapolated":
            before, last = (self.transitions.timesteps[s] for s in self.clean_steps[:, rows])
            now = self.transitions.timesteps[steps]
            known = self.clean_steps[0, rows] >= 0
            slope = torch.where(known, (now - last) / torch.where(known, last - before, 1), 0.0)
            slope = slope.to(clean.dtype).view(-1, *(1 for _ in range(clean.ndim - 1)))
            clean = clean + slope * (clean - self.clean[0, rows])
        return self.transitions.output_for(steps, samples, clean)

    def _couple(
        self, steps: Tensor, rows: Tensor, valid: Tensor, means: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Outcomes of all drafted steps `[L, n, ...]`, and which are the draft's, `[L, n]`."""
        own = rows.expand(len(steps), -1)[valid]
        noise, uniform = self.draws.noise[own, steps[valid]], self.draws.uniform[own, steps[valid]]
        std = self.transitions.std[steps[valid]][:, None]
        drawn, same = self.config.coupling(
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
        """The clean samples that the last two passes along each path found."""
        each = torch.arange(len(rows))
        for at in (last - 1, last):
            here = at >= 0
            picked, where = each[here], at[here]
            own, found = rows[picked], steps[where, picked]
            self.clean[0, own] = self.clean[1, own]
            self.clean_steps[0, own] = self.clean_steps[1, own]
            self.clean[1, own] = self.transitions.clean(
                found, drafted[where, picked], outputs[where, picked]
            )
            self.clean_steps[1, own] = found

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
