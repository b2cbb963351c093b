"""Targets with a known score (a Gaussian with a law in closed form, and a mixture), and wrong couplings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forerun.diffusion.speculative_sampling import Coupling, couple
from forerun.diffusion.transitions import Transitions


@dataclass(frozen=True)
class Law:
    """Gaussian distributions of a sampler's states; index k is the state before step k.

    Args:
        means: means, `[K + 1, D]`.
        covariances: covariances, `[K + 1, D, D]`.
    """

    means: Tensor
    covariances: Tensor

    def whiten(self, index: int, states: Tensor) -> Tensor:
        """Transform states `[N, D]` at an index so that they are standard normal under this law."""
        factor = torch.linalg.cholesky(self.covariances[index])
        centred = (states - self.means[index]).T
        whitened: Tensor = torch.linalg.solve_triangular(factor, centred, upper=False)
        return whitened.T


class GaussianTarget:
    """The perfect denoiser of a Gaussian, as a network that predicts noise.

    Args:
        mean: mean, `[D]`.
        covariance: covariance, `[D, D]`.
        cumulated: the scheduler's cumulated alphas, by timestep.
    """

    def __init__(self, mean: Tensor, covariance: Tensor, cumulated: Tensor) -> None:
        self.mean, self.covariance = mean.double(), covariance.double()
        self.cumulated = cumulated.double()

    def matrix(self, timestep: Tensor) -> tuple[Tensor, Tensor]:
        """Matrix `w` and offset `b` of the predicted noise `w x + b` at a timestep."""
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
        """Law of a sampler with this network; each of its steps is linear and adds Gaussian noise."""
        identity = torch.eye(len(self.mean), dtype=torch.float64)
        mean, covariance = torch.zeros_like(self.mean), transitions.start**2 * identity
        means, covariances = [mean], [covariance]
        for step, timestep in enumerate(transitions.timesteps):
            weights, offset = self.matrix(timestep)
            at = torch.tensor([step])
            # Matrices of x and of the network's output, found by applying the step to unit vectors.
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
        centres: centres of the Gaussians, `[M, D]`, equally likely.
        variance: variance of each Gaussian in every dimension.
        cumulated: the scheduler's cumulated alphas, by timestep.
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
    """A Gaussian target with correlated dimensions, the same at every call."""
    generator = torch.Generator().manual_seed(dimensions)
    factor = torch.randn(dimensions, dimensions, generator=generator) / dimensions**0.5
    covariance = 0.5 * factor @ factor.T + 0.05 * torch.eye(dimensions)
    mean = torch.randn(dimensions, generator=generator)
    return GaussianTarget(mean, covariance, scheduler.alphas_cumprod)


def mixture(dimensions: int, scheduler: Any) -> MixtureTarget:
    """A mixture target of five Gaussians, the same at every call."""
    generator = torch.Generator().manual_seed(dimensions)
    centres = torch.randn(5, dimensions, generator=generator)
    return MixtureTarget(centres, 0.15, scheduler.alphas_cumprod)


def keep_all(
    draft_mean: Tensor, target_mean: Tensor, std: Tensor, noise: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """Planted wrong coupling that keeps every step of the draft."""
    del target_mean
    return draft_mean + std * noise, torch.ones_like(uniform, dtype=torch.bool)


def redraw(
    draft_mean: Tensor, target_mean: Tensor, std: Tensor, noise: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """Planted wrong coupling that draws rejected steps again from the target, not from the residual.

    Speculative decoding without recovered tokens would make the same mistake.
    """
    drafted, kept = couple(draft_mean, target_mean, std, noise, uniform)
    fresh = torch.randn(noise.shape, generator=torch.Generator().manual_seed(7), dtype=noise.dtype)
    return torch.where(kept[:, None], drafted, target_mean + std * fresh), kept


def not_mirrored(
    draft_mean: Tensor, target_mean: Tensor, std: Tensor, noise: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """Planted wrong coupling that keeps the noise of rejected steps instead of mirroring it."""
    drafted, kept = couple(draft_mean, target_mean, std, noise, uniform)
    return torch.where(kept[:, None], drafted, target_mean + std * noise), kept


COUPLINGS: dict[str | None, Coupling] = {
    None: couple,
    "keep_all": keep_all,
    "redraw": redraw,
    "not_mirrored": not_mirrored,
}
"""The exact coupling (None), and wrong ones by name, which `prove` must detect."""
