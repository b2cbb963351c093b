"""Targets whose score is known: a Gaussian, whose sampler has a law in closed form, and a mixture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forerun.diffusion.transitions import Transitions


@dataclass(frozen=True)
class Law:
    """Gaussians of a sampler's states: before step k that of index k, and after the last one the last.

    Args:
        means: `[K + 1, D]`.
        covariances: `[K + 1, D, D]`.
    """

    means: Tensor
    covariances: Tensor

    def whiten(self, index: int, states: Tensor) -> Tensor:
        """States `[N, D]` of that law as standard normal ones."""
        factor = torch.linalg.cholesky(self.covariances[index])
        centred = (states - self.means[index]).T
        whitened: Tensor = torch.linalg.solve_triangular(factor, centred, upper=False)
        return whitened.T


class GaussianTarget:
    """The perfect denoiser of a Gaussian, as a network that predicts noise.

    Args:
        mean: `[D]`.
        covariance: `[D, D]`.
        cumulated: of the scheduler's alphas, by timestep.
    """

    def __init__(self, mean: Tensor, covariance: Tensor, cumulated: Tensor) -> None:
        self.mean, self.covariance = mean.double(), covariance.double()
        self.cumulated = cumulated.double()

    def matrix(self, timestep: Tensor) -> tuple[Tensor, Tensor]:
        """With `w`, `b`: the noise in `x` is `w x + b`."""
        kept = self.cumulated[timestep.long()]
        noisy = kept * self.covariance + (1 - kept) * torch.eye(len(self.mean), dtype=kept.dtype)
        weights = (1 - kept).sqrt() * torch.linalg.inv(noisy)
        return weights, -weights @ (kept.sqrt() * self.mean)

    def __call__(self, samples: Tensor, timesteps: Tensor, rows: Tensor) -> Tensor:
        predicted = torch.empty_like(samples, dtype=torch.float64)
        for timestep in torch.unique(timesteps):
            here = timesteps == timestep
            weights, offset = self.matrix(timestep)
            predicted[here] = samples[here].double() @ weights.T + offset
        return predicted

    def law(self, transitions: Transitions) -> Law:
        """Of a sampler that runs this network: each step is linear, and adds Gaussian noise."""
        identity = torch.eye(len(self.mean), dtype=torch.float64)
        mean, covariance = torch.zeros_like(self.mean), transitions.start**2 * identity
        means, covariances = [mean], [covariance]
        for step, timestep in enumerate(transitions.timesteps):
            weights, offset = self.matrix(timestep)
            at = torch.tensor([step])
            # Of x and the network's output, by what they make of unit vectors and of nothing.
            of_sample = transitions.mean(at, identity, torch.zeros_like(identity))
            of_output = transitions.mean(at, torch.zeros_like(identity), identity)
            scale = transitions.input_scale[step]
            turn = of_sample + of_output @ (scale * weights)
            mean = turn @ mean + of_output @ offset
            covariance = turn @ covariance @ turn.T + transitions.std[step] ** 2 * identity
            means.append(mean)
            covariances.append(covariance)
        return Law(torch.stack(means), torch.stack(covariances))


class MixtureTarget:
    """The perfect denoiser of a mixture of Gaussians of one variance, as a network that predicts noise.

    Args:
        centres: `[M, D]`, equally likely.
        variance: of each around its centre, in every dimension.
        cumulated: of the scheduler's alphas, by timestep.
    """

    def __init__(self, centres: Tensor, variance: float, cumulated: Tensor) -> None:
        self.centres, self.variance = centres.double(), variance
        self.cumulated = cumulated.double()

    def __call__(self, samples: Tensor, timesteps: Tensor, rows: Tensor) -> Tensor:
        kept = self.cumulated[timesteps.long()][:, None]
        spread = kept * self.variance + (1 - kept)
        apart = samples.double()[:, None] - kept.sqrt()[..., None] * self.centres
        shares = torch.softmax(-apart.square().sum(-1) / (2 * spread), -1)
        return (1 - kept).sqrt() * (shares[..., None] * apart).sum(1) / spread


def gaussian(dimensions: int, scheduler: Any) -> GaussianTarget:
    """One with correlated dimensions, the same each time."""
    generator = torch.Generator().manual_seed(dimensions)
    factor = torch.randn(dimensions, dimensions, generator=generator) / dimensions**0.5
    covariance = 0.5 * factor @ factor.T + 0.05 * torch.eye(dimensions)
    mean = torch.randn(dimensions, generator=generator)
    return GaussianTarget(mean, covariance, scheduler.alphas_cumprod)


def mixture(dimensions: int, scheduler: Any) -> MixtureTarget:
    """Of five, the same each time."""
    generator = torch.Generator().manual_seed(dimensions)
    centres = torch.randn(5, dimensions, generator=generator)
    return MixtureTarget(centres, 0.15, scheduler.alphas_cumprod)
