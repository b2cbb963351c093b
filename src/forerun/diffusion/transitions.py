"""Steps of a stochastic sampler, as Gaussians around means that follow from the network's predictions.

Each scheduler's step is written as `mean = from_clean * clean + from_sample * x + from_output * output` with
`clean = clean_from_sample * x + clean_from_output * output`, clipped if the scheduler clips. So samples at
different steps go through one call. Tests compare the means and deviations with those of the schedulers'
`step`. Sources: DDPM (Ho et al., arXiv 2006.11239, equation 7), DDIM (Song et al., arXiv 2010.02502,
equations 12 and 16), Euler ancestral (Karras et al., arXiv 2206.00364, as in k-diffusion).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forerun.errors import ConfigError, UnknownNameError, UnsupportedModelError

STOCHASTIC = ("DDPMScheduler", "DDIMScheduler", "EulerAncestralDiscreteScheduler")
_FIXED_VARIANCES = ("fixed_small", "fixed_small_log", "fixed_large")


@dataclass(frozen=True)
class Transitions:
    """All steps of a sampler, in its order; each field but the last two is `[K]`.

    Args:
        timesteps: timesteps as the network takes them.
        input_scale: factors by which samples are multiplied for the network.
        clean_from_sample, clean_from_output: coefficients of the clean sample implied by an output.
        from_clean, from_sample, from_output: coefficients of the mean of the step's outcome.
        std: standard deviation of the outcome, the same in all dimensions; 0 for a step that adds no noise
            (1e-10 for DDPM that does not end at timestep 0).
        clip: largest clean value if the scheduler clips; else None.
        start: standard deviation of the samples before the first step.
    """

    timesteps: Tensor
    input_scale: Tensor
    clean_from_sample: Tensor
    clean_from_output: Tensor
    from_clean: Tensor
    from_sample: Tensor
    from_output: Tensor
    std: Tensor
    clip: float | None
    start: float

    @classmethod
    def of(cls, scheduler: Any, num_steps: int, eta: float = 0.0) -> Transitions:
        """The steps of a scheduler from diffusers.

        Args:
            scheduler: DDPM, DDIM or Euler ancestral; it is not changed.
            num_steps: number of steps of the sampling run.
            eta: eta of DDIM, which is the share of DDPM's noise that it adds.

        Raises:
            UnknownNameError: for another scheduler.
            ConfigError: for a deterministic sampler, or a number of steps that the scheduler refuses.
            UnsupportedModelError: for a variance predicted by the network, dynamic thresholding, or an
                unknown prediction type.
        """
        name = type(scheduler).__name__
        if name not in STOCHASTIC:
            raise UnknownNameError("stochastic scheduler", name, STOCHASTIC)
        if name == "DDIMScheduler" and eta == 0:
            raise ConfigError(
                "DDIM with eta 0 is deterministic: without noise there is nothing to couple, and a draft is "
                "right only where it is equal. Give an eta above 0, at most 1."
            )
        if name == "DDIMScheduler" and not 0.0 < eta <= 1.0:
            raise ConfigError(f"eta is {eta:g}; give one above 0, at most 1.")
        return cls._of(scheduler, num_steps, eta)

    @classmethod
    def deterministic(cls, scheduler: Any, num_steps: int) -> Transitions:
        """The steps of DDIM with eta 0; raises as `of`."""
        return cls._of(scheduler, num_steps, 0.0)

    @classmethod
    def _of(cls, scheduler: Any, num_steps: int, eta: float) -> Transitions:
        own, name = copy.deepcopy(scheduler), type(scheduler).__name__
        if own.config.get("thresholding"):
            raise UnsupportedModelError(
                f"{name} thresholds by the whole sample; only clipping is known."
            )
        most = own.config.num_train_timesteps
        if not 1 <= num_steps <= most:
            raise ConfigError(
                f"{name} was trained with {most} timesteps; give 1 to {most} steps, not {num_steps} steps."
            )
        own.set_timesteps(num_steps)
        if name == "EulerAncestralDiscreteScheduler":
            made = _euler_ancestral(own)
        else:
            made = _ddim(own, eta) if name == "DDIMScheduler" else _ddpm(own)
        if not all(bool(table.isfinite().all()) for table in made.tables):
            raise UnsupportedModelError(
                f"{name} starts without signal, which a prediction of {own.config.prediction_type} cannot "
                "be read from; use v_prediction."
            )
        return made

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """Coefficients and standard deviations of the steps."""
        clean = (self.clean_from_sample, self.clean_from_output)
        return (*clean, self.from_clean, self.from_sample, self.from_output, self.std)

    def __len__(self) -> int:
        return len(self.timesteps)

    def clean(self, steps: Tensor, samples: Tensor, outputs: Tensor) -> Tensor:
        """Clean samples implied by outputs, unclipped.

        Args:
            steps: step index of each sample, `[N]`.
            samples: samples of the sampler, `[N, ...]`.
            outputs: outputs of the network, `[N, ...]`.
        """
        from_sample, from_output = self._at(
            steps, samples, self.clean_from_sample, self.clean_from_output
        )
        return from_sample * samples + from_output * outputs

    def output_for(self, steps: Tensor, samples: Tensor, clean: Tensor) -> Tensor:
        """Outputs of the network that imply given clean samples: the inverse of `clean`."""
        from_sample, from_output = self._at(
            steps, samples, self.clean_from_sample, self.clean_from_output
        )
        return (clean - from_sample * samples) / from_output

    def mean(self, steps: Tensor, samples: Tensor, outputs: Tensor) -> Tensor:
        """Means of the next samples; the arguments are those of `clean`."""
        clean = self.clean(steps, samples, outputs)
        if self.clip is not None:
            clean = clean.clamp(-self.clip, self.clip)
        from_clean, from_sample, from_output = self._at(
            steps, samples, self.from_clean, self.from_sample, self.from_output
        )
        return from_clean * clean + from_sample * samples + from_output * outputs

    def output_to(self, steps: Tensor, samples: Tensor, means: Tensor) -> Tensor:
        """Outputs of the network from which given means follow, unclipped: the inverse of `mean`."""
        # Solved for the output directly, because the clean sample loses digits where all is noise.
        from_sample, from_output = self._at(
            steps,
            samples,
            self.from_clean * self.clean_from_sample + self.from_sample,
            self.from_clean * self.clean_from_output + self.from_output,
        )
        return (means - from_sample * samples) / from_output

    def scaled(self, steps: Tensor, samples: Tensor) -> Tensor:
        """Samples scaled as the network takes them."""
        (scale,) = self._at(steps, samples, self.input_scale)
        return scale * samples

    def deviation(self, steps: Tensor, samples: Tensor) -> Tensor:
        """Standard deviations of the steps, in a shape that broadcasts with samples."""
        (std,) = self._at(steps, samples, self.std)
        return std

    @staticmethod
    def _at(steps: Tensor, samples: Tensor, *tables: Tensor) -> list[Tensor]:
        shape = (-1, *(1 for _ in range(samples.ndim - 1)))
        return [table[steps].to(samples.dtype).view(shape) for table in tables]


@dataclass(frozen=True)
class _Levels:
    """Signal and noise at the start and end of each step, `[K]` in float64; their squares sum to 1."""

    alpha: Tensor
    sigma: Tensor
    alpha_end: Tensor
    sigma_end: Tensor

    @classmethod
    def of(cls, cumulated: Tensor, cumulated_end: Tensor) -> _Levels:
        cumulated, end = cumulated.double(), cumulated_end.double()
        return cls(cumulated.sqrt(), (1 - cumulated).sqrt(), end.sqrt(), (1 - end).sqrt())


def _clean(scheduler: Any, alpha: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficients of sample and output in the clean sample, by prediction type."""
    kind = scheduler.config.prediction_type
    if kind == "epsilon":
        return 1 / alpha, -sigma / alpha
    if kind == "v_prediction":
        return alpha, -sigma
    if kind == "sample":
        return torch.zeros_like(alpha), torch.ones_like(alpha)
    raise UnsupportedModelError(f"prediction_type {kind!r} is not known.")


def _clip(scheduler: Any) -> float | None:
    return float(scheduler.config.clip_sample_range) if scheduler.config.clip_sample else None


def _ddpm(scheduler: Any) -> Transitions:
    kind = scheduler.config.variance_type
    if kind not in _FIXED_VARIANCES:
        raise UnsupportedModelError(
            f"DDPMScheduler with variance_type {kind!r}: target and draft must add the same noise, so only "
            f"{', '.join(_FIXED_VARIANCES)} are known."
        )
    times = scheduler.timesteps
    ends = torch.tensor([int(scheduler.previous_timestep(time)) for time in times])
    cumulated = scheduler.alphas_cumprod
    end = torch.where(ends >= 0, cumulated[ends.clamp(min=0)], torch.ones(()))
    levels = _Levels.of(cumulated[times], end)
    signal = (levels.alpha / levels.alpha_end).square()
    added = 1 - signal
    small = (levels.sigma_end / levels.sigma).square() * added
    variance = added if kind == "fixed_large" else small.clamp(min=1e-20)
    return _with_tables(
        scheduler,
        levels,
        from_clean=levels.alpha_end * added / levels.sigma.square(),
        from_sample=signal.sqrt() * (levels.sigma_end / levels.sigma).square(),
        from_output=torch.zeros_like(signal),
        std=torch.where(times > 0, variance.sqrt(), 0.0),
    )


def _ddim(scheduler: Any, eta: float) -> Transitions:
    times = scheduler.timesteps
    ends = times - scheduler.config.num_train_timesteps // scheduler.num_inference_steps
    cumulated = scheduler.alphas_cumprod
    end = torch.where(ends >= 0, cumulated[ends.clamp(min=0)], scheduler.final_alpha_cumprod)
    levels = _Levels.of(cumulated[times], end)
    signal = (levels.alpha / levels.alpha_end).square()
    variance = (levels.sigma_end / levels.sigma).square() * (1 - signal)
    std = eta * variance.clamp(min=0).sqrt()
    direction = (levels.sigma_end.square() - std.square()).clamp(min=0).sqrt()
    # The noise is (x - alpha * clean) / sigma, with the clean sample before clipping.
    clean_from_sample, clean_from_output = _clean(scheduler, levels.alpha, levels.sigma)
    return _with_tables(
        scheduler,
        levels,
        from_clean=levels.alpha_end,
        from_sample=direction * (1 - levels.alpha * clean_from_sample) / levels.sigma,
        from_output=-direction * levels.alpha * clean_from_output / levels.sigma,
        std=std,
    )


def _with_tables(scheduler: Any, levels: _Levels, **tables: Tensor) -> Transitions:
    clean_from_sample, clean_from_output = _clean(scheduler, levels.alpha, levels.sigma)
    return Transitions(
        timesteps=scheduler.timesteps,
        input_scale=torch.ones_like(levels.alpha),
        clean_from_sample=clean_from_sample,
        clean_from_output=clean_from_output,
        clip=_clip(scheduler),
        start=float(scheduler.init_noise_sigma),
        **tables,
    )


def _euler_ancestral(scheduler: Any) -> Transitions:
    kind = scheduler.config.prediction_type
    sigmas = scheduler.sigmas.double()
    start, end = sigmas[:-1], sigmas[1:]
    if kind == "epsilon":
        clean_from_sample, clean_from_output = torch.ones_like(start), -start
    elif kind == "v_prediction":
        clean_from_sample = 1 / (start.square() + 1)
        clean_from_output = -start / (start.square() + 1).sqrt()
    else:
        raise UnsupportedModelError(
            f"prediction_type {kind!r} is not known to {type(scheduler).__name__}."
        )
    up = (end.square() * (start.square() - end.square()) / start.square()).sqrt()
    down = (end.square() - up.square()).sqrt()
    # x + (x - clean) / start * (down - start)
    return Transitions(
        timesteps=scheduler.timesteps,
        input_scale=1 / (start.square() + 1).sqrt(),
        clean_from_sample=clean_from_sample,
        clean_from_output=clean_from_output,
        from_clean=1 - down / start,
        from_sample=down / start,
        from_output=torch.zeros_like(start),
        std=up,
        clip=None,
        start=float(scheduler.init_noise_sigma),
    )
