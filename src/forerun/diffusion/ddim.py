"""DDIM in closed form: noising, steps between any two timesteps, and the prediction behind a step.

As in diffusers, a prediction is of the noise (`epsilon`) or of the velocity (`v_prediction`). A timestep
below zero stands for the clean sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forerun.errors import ConfigError

# Upper bound of weights: where all is noise, a prediction of the noise says almost nothing.
_MOST_WEIGHT = 100.0


@dataclass(frozen=True)
class Schedule:
    """Noise levels of a DDIM scheduler.

    Args:
        alphas_cumprod: share of the signal in the variance, by timestep, `[T]`.
        final: the same share for the clean sample.
        prediction: prediction type of the denoiser: `epsilon` or `v_prediction`.
        spacing: spacing of timesteps: `trailing` or `leading`.
        offset: number added to leading timesteps.
    """

    alphas_cumprod: Tensor
    final: float
    prediction: str
    spacing: str
    offset: int

    @classmethod
    def of(cls, scheduler: Any) -> Schedule:
        """The schedule of a scheduler from diffusers.

        Raises:
            ConfigError: for a scheduler that is not DDIM, or has settings without a closed form.
        """
        name, config = type(scheduler).__name__, scheduler.config
        if name != "DDIMScheduler":
            raise ConfigError(f"the scheduler must be DDIMScheduler, got {name}.")
        if config.prediction_type not in ("epsilon", "v_prediction"):
            raise ConfigError(
                f"prediction_type must be epsilon or v_prediction, got {config.prediction_type!r}."
            )
        if config.timestep_spacing not in ("trailing", "leading"):
            raise ConfigError(
                "the timesteps of half as many steps must be among those of all; set timestep_spacing to "
                f"trailing or leading, not {config.timestep_spacing!r}."
            )
        if config.clip_sample or config.thresholding:
            raise ConfigError(
                "a scheduler that clips its samples is not linear; set clip_sample=False."
            )
        return cls(
            scheduler.alphas_cumprod.float(),
            float(scheduler.final_alpha_cumprod),
            config.prediction_type,
            config.timestep_spacing,
            config.steps_offset,
        )

    def check_steps(self, steps: int) -> None:
        """Check that the timesteps of `steps` steps are evenly spaced.

        Raises:
            ConfigError: if they are not.
        """
        total = len(self.alphas_cumprod)
        if total % steps:
            known = [count for count in range(1, total + 1) if total % count == 0]
            raise ConfigError(
                f"{steps} steps do not divide the scheduler's {total} timesteps; "
                f"use {', '.join(map(str, known))}."
            )

    def stride(self, steps: int) -> int:
        """Number of timesteps between two steps."""
        return len(self.alphas_cumprod) // steps

    def timesteps(self, steps: int) -> Tensor:
        """Timestep at which each step begins, ascending, `[steps]`."""
        stride = self.stride(steps)
        first = stride - 1 if self.spacing == "trailing" else self.offset
        return torch.arange(steps) * stride + first

    def levels(self, times: Tensor) -> tuple[Tensor, Tensor]:
        """Factors of signal and noise `(α, σ)` at timesteps `[B]`, for samples `[B, C, H, W]`."""
        known = self.alphas_cumprod[times.clamp_min(0)]
        share = torch.where(times < 0, torch.full_like(known, self.final), known).view(-1, 1, 1, 1)
        return share.sqrt(), (1.0 - share).sqrt()

    def noisy(self, clean: Tensor, noise: Tensor, times: Tensor) -> Tensor:
        """Clean samples with noise added."""
        alpha, sigma = self.levels(times)
        return alpha * clean + sigma * noise

    def clean(self, noisy: Tensor, predicted: Tensor, times: Tensor) -> Tensor:
        """The clean sample implied by a prediction."""
        alpha, sigma = self.levels(times)
        if self.prediction == "epsilon":
            return (noisy - sigma * predicted) / alpha
        return alpha * noisy - sigma * predicted

    def noise(self, noisy: Tensor, predicted: Tensor, times: Tensor) -> Tensor:
        """The noise implied by a prediction."""
        alpha, sigma = self.levels(times)
        return predicted if self.prediction == "epsilon" else alpha * predicted + sigma * noisy

    def step(self, noisy: Tensor, predicted: Tensor, times: Tensor, ends: Tensor) -> Tensor:
        """Take a deterministic step from timesteps `times` to `ends`, both `[B]`."""
        alpha, sigma = self.levels(ends)
        return alpha * self.clean(noisy, predicted, times) + sigma * self.noise(
            noisy, predicted, times
        )

    def prediction_to_land(
        self, noisy: Tensor, landed: Tensor, times: Tensor, ends: Tensor
    ) -> Tensor:
        """The prediction with which a step from `noisy` ends at `landed`."""
        alpha, sigma = self.levels(times)
        alpha_end, sigma_end = self.levels(ends)
        # Solved for the prediction directly, because the clean sample loses digits where all is noise.
        if self.prediction == "epsilon":
            return (landed - alpha_end / alpha * noisy) / (sigma_end - alpha_end / alpha * sigma)
        turned = alpha_end * alpha + sigma_end * sigma
        return (landed - turned * noisy) / (sigma_end * alpha - alpha_end * sigma)

    def weights(self, times: Tensor) -> Tensor:
        """Weights of squared errors of the prediction, `[B]`.

        The weighted error equals the squared error of the clean sample times max(signal-to-noise ratio, 1).
        """
        alpha, sigma = (level.flatten() for level in self.levels(times))
        if self.prediction == "epsilon":
            return (sigma / alpha).square().clamp(1.0, _MOST_WEIGHT)
        return torch.maximum(alpha.square(), sigma.square())
