"""DDIM in closed form: noising, steps between any two timesteps, and the prediction behind a step.

As in diffusers, a prediction is of the noise (`epsilon`) or of the velocity (`v_prediction`), and a timestep
below zero is the clean sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forerun.errors import ConfigError

# A prediction of the noise says almost nothing where all is noise; no weight is larger.
_MOST_WEIGHT = 100.0


@dataclass(frozen=True)
class Schedule:
    """A DDIM scheduler's noise levels.

    Args:
        alphas_cumprod: the share of the signal's variance by timestep, `[T]`.
        final: that of the clean sample.
        prediction: what the denoiser predicts.
        spacing: how timesteps are chosen: `trailing` or `leading`.
        offset: added to leading timesteps.
    """

    alphas_cumprod: Tensor
    final: float
    prediction: str
    spacing: str
    offset: int

    @classmethod
    def of(cls, scheduler: Any) -> Schedule:
        """That of a scheduler of diffusers.

        Raises:
            ConfigError: for one that is not DDIM, or with settings that have no closed form here.
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
        """Raise where the timesteps of `steps` steps are not evenly spaced.

        Raises:
            ConfigError: for such a number of steps.
        """
        total = len(self.alphas_cumprod)
        if total % steps:
            known = [count for count in range(1, total + 1) if total % count == 0]
            raise ConfigError(
                f"{steps} steps do not divide the scheduler's {total} timesteps; "
                f"use {', '.join(map(str, known))}."
            )

    def stride(self, steps: int) -> int:
        """Timesteps between two steps."""
        return len(self.alphas_cumprod) // steps

    def timesteps(self, steps: int) -> Tensor:
        """Where each step begins, ascending: `[steps]`."""
        stride = self.stride(steps)
        first = stride - 1 if self.spacing == "trailing" else self.offset
        return torch.arange(steps) * stride + first

    def levels(self, times: Tensor) -> tuple[Tensor, Tensor]:
        """The shares of signal and noise `(α, σ)` at timesteps `[B]`, for samples `[B, C, H, W]`."""
        known = self.alphas_cumprod[times.clamp_min(0)]
        share = torch.where(times < 0, torch.full_like(known, self.final), known).view(-1, 1, 1, 1)
        return share.sqrt(), (1.0 - share).sqrt()

    def noisy(self, clean: Tensor, noise: Tensor, times: Tensor) -> Tensor:
        """Clean samples with noise added."""
        alpha, sigma = self.levels(times)
        return alpha * clean + sigma * noise

    def clean(self, noisy: Tensor, predicted: Tensor, times: Tensor) -> Tensor:
        """The clean sample that a prediction stands for."""
        alpha, sigma = self.levels(times)
        if self.prediction == "epsilon":
            return (noisy - sigma * predicted) / alpha
        return alpha * noisy - sigma * predicted

    def noise(self, noisy: Tensor, predicted: Tensor, times: Tensor) -> Tensor:
        """The noise that a prediction stands for."""
        alpha, sigma = self.levels(times)
        return predicted if self.prediction == "epsilon" else alpha * predicted + sigma * noisy

    def step(self, noisy: Tensor, predicted: Tensor, times: Tensor, ends: Tensor) -> Tensor:
        """A deterministic step from timesteps `times` to `ends`, both `[B]`."""
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
        # Solved for the prediction: by way of the clean sample it loses digits where all is noise.
        if self.prediction == "epsilon":
            return (landed - alpha_end / alpha * noisy) / (sigma_end - alpha_end / alpha * sigma)
        turned = alpha_end * alpha + sigma_end * sigma
        return (landed - turned * noisy) / (sigma_end * alpha - alpha_end * sigma)

    def weights(self, times: Tensor) -> Tensor:
        """What a squared error of the prediction counts, `[B]`: that of the clean sample times the larger
        of the signal-to-noise ratio and 1."""
        alpha, sigma = (level.flatten() for level in self.levels(times))
        if self.prediction == "epsilon":
            return (sigma / alpha).square().clamp(1.0, _MOST_WEIGHT)
        return torch.maximum(alpha.square(), sigma.square())
