"""Clips from key frames, which are denoised as a shorter clip; the rest is interpolated. Approximate.

Neighbouring frames differ little. So most of the early steps, which settle content and motion, are run on
the key frames alone. The latents between them are interpolated and noised again as in SDEdit (Meng et al.,
arXiv 2108.01073), and the whole clip takes the last steps together.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forerun.diffusion.hooks import Wrapper, count_evaluations
from forerun.diffusion.pipelines import denoiser_of, kind_of, sample
from forerun.diffusion.settings import Interpolation, VideoLatentCacheConfig
from forerun.errors import ConfigError, UnsupportedModelError

# Sine of the angle below which two directions count as parallel or opposite.
_LEAST_SINE = 1e-4


@dataclass(frozen=True)
class CachedClips:
    """Clips sampled from key frames.

    Args:
        latents: latents, `[B, C, F, H, W]`.
        images: images in [0, 1], `[B, F, C, H, W]`.
        key_frames: key frames of all clips, ascending, `[K]`.
        passes: passes of the denoiser: frames times steps, over all clips and both halves of guidance.
        full_passes: passes of the full sampler.
    """

    latents: Tensor
    images: Tensor
    key_frames: Tensor
    passes: int
    full_passes: int

    approximate = True
    """Always True, because the clips differ from the full sampler's."""

    @property
    def factor(self) -> float:
        """Passes of the full sampler / passes used."""
        return self.full_passes / self.passes


class _Sampler:
    """A pipeline's own loop over some of its schedule's steps."""

    def __init__(self, pipeline: Any, steps: int, conditions: dict[str, Any]) -> None:
        self.pipeline, self.steps, self._conditions = pipeline, steps, conditions
        self.timesteps: Tensor = pipeline.scheduler.timesteps
        self._clean = torch.empty(0)

    def run(self, latents: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Latents after steps `first` to `last` - 1, and the clean latents predicted at the last."""
        with self._stretch(first, last):
            latents_after = sample(
                self.pipeline, latents, steps=self.steps, latent=True, **self._conditions
            )
        return latents_after, self._clean

    def with_steps(self, steps: int) -> _Sampler:
        """A sampler of the same pipeline with another number of steps."""
        return _Sampler(self.pipeline, steps, self._conditions)

    def decode(self, latents: Tensor) -> Tensor:
        """Decode clean latents to images, by the pipeline's loop without a step."""
        with self._stretch(self.steps, self.steps):
            return sample(self.pipeline, latents, steps=self.steps, **self._conditions)

    def noisy(self, clean: Tensor, noise: Tensor, step: int) -> Tensor:
        """Clean latents with noise added, at the noise level at the beginning of a step."""
        when = self.timesteps[step : step + 1]
        mixed: Tensor = self.pipeline.scheduler.add_noise(clean, noise, when)
        return mixed

    @contextmanager
    def _stretch(self, first: int, last: int) -> Iterator[None]:
        """Limit the scheduler to some steps, and record the clean latents that its steps predict."""
        scheduler = self.pipeline.scheduler

        def set_timesteps(inner: Any, *args: Any, **kwargs: Any) -> Any:
            inner(*args, **kwargs)
            self.timesteps = scheduler.timesteps
            scheduler.timesteps = self.timesteps[first:last]

        def step(inner: Any, *args: Any, **kwargs: Any) -> Any:
            output = inner(*args, **kwargs)
            self._clean = output[1]
            return output

        wrappers = (
            Wrapper(scheduler, "set_timesteps", set_timesteps),
            Wrapper(scheduler, "step", step),
        )
        try:
            yield
        finally:
            for wrapper in wrappers:
                wrapper.remove()
            scheduler.timesteps = self.timesteps


@torch.no_grad()
def sample_clips(
    pipeline: Any,
    noise: Tensor,
    *,
    steps: int,
    config: VideoLatentCacheConfig,
    **conditions: Any,
) -> CachedClips:
    """Sample clips from given noise, most steps on key frames alone.

    Caches applied to the pipeline stay active. With all frames as key frames, the result equals the full
    sampler's, bit for bit.

    Args:
        pipeline: AnimateDiff pipeline with DDIM.
        noise: initial noise, `[B, C, F, H, W]`.
        steps: number of steps of the full schedule.
        config: settings of key frames and of the frames between them.
        conditions: labels, prompts and guidance scale, as `forerun.diffusion.pipelines.sample` takes them.

    Raises:
        ConfigError: for noise or a number of frames or steps that do not match, for a scheduler other than
            DDIM, and for conditions that the pipeline does not take.
        UnsupportedModelError: for a pipeline that does not make clips, or cannot make them from fewer
            frames.
    """
    _check_pipeline(pipeline)
    _check_noise(pipeline, noise)
    config.check_steps(steps)
    sampler = _Sampler(pipeline, steps, conditions)
    with count_evaluations(pipeline) as counted:
        latents, keys = _denoise(sampler, noise, config)
    count, frames = noise.shape[0], noise.shape[2]
    halves = 2 if pipeline.do_classifier_free_guidance else 1
    return CachedClips(
        latents=latents,
        images=sampler.decode(latents),
        key_frames=keys,
        passes=counted.frames,
        full_passes=halves * count * frames * steps,
    )


def _denoise(
    sampler: _Sampler, noise: Tensor, config: VideoLatentCacheConfig
) -> tuple[Tensor, Tensor]:
    """Denoise clips: the clean latents `[B, C, F, H, W]` and the key frames `[K]`."""
    frames = noise.shape[2]
    keys = spaced_key_frames(frames, config.key_interval)
    split = sampler.steps - config.refined_share
    own, clean = sampler.run(noise[:, :, keys], 0, split)
    if len(keys) == frames:
        return sampler.run(own, split, sampler.steps)[0], keys
    if config.finish_key_frames or not config.refine_steps:
        clean, _ = sampler.run(own, split, sampler.steps)
    filled = fill_between(clean, keys, config.interpolation)
    if not config.refine_steps:
        return filled, keys
    noisy = sampler.noisy(filled, noise, split)
    # Key frames continue from their own latents, which noise on their clean latents would not restore.
    noisy[:, :, keys] = own
    coarse = sampler.with_steps(sampler.steps // config.refine_stride)
    return coarse.run(noisy, split // config.refine_stride, coarse.steps)[0], keys


def spaced_key_frames(num_frames: int, interval: int) -> Tensor:
    """Key frames at every `interval`-th frame and at the last, ascending, `[K]`.

    Raises:
        ConfigError: for an interval longer than the clip.
    """
    if not 1 <= interval < num_frames:
        raise ConfigError(
            f"key_interval must lie in [1, {num_frames - 1}] for a clip of {num_frames} frames, "
            f"got {interval}."
        )
    return torch.tensor([*range(0, num_frames - 1, interval), num_frames - 1])


def fill_between(values: Tensor, keys: Tensor, how: Interpolation) -> Tensor:
    """Interpolate whole clips from their key frames, by each frame's place in time.

    Args:
        values: values of the key frames, `[B, C, K, H, W]`.
        keys: indices of the key frames, ascending from the first frame to the last, `[K]`.
        how: `slerp` goes along the arc between two frames, each taken as one vector; `linear` goes along
            the line.

    Returns:
        Clips `[B, C, F, H, W]` with unchanged key frames.
    """
    places = torch.arange(int(keys[-1]) + 1)
    before = (torch.searchsorted(keys, places, right=True) - 1).clamp(max=len(keys) - 2)
    start, end = keys[before], keys[before + 1]
    weights = ((places - start) / (end - start)).to(values)
    first, second = (values[:, :, index].transpose(1, 2) for index in (before, before + 1))
    between = slerp if how == "slerp" else linear
    filled = between(first.flatten(2), second.flatten(2), weights)
    clips = filled.view(first.shape).transpose(1, 2)
    clips[:, :, keys] = values
    return clips


def linear(first: Tensor, second: Tensor, weights: Tensor) -> Tensor:
    """Interpolate along the line between vectors `[..., n]`; weight 0 gives the first, 1 the second."""
    return torch.lerp(first, second, weights[..., None])


def slerp(first: Tensor, second: Tensor, weights: Tensor) -> Tensor:
    """Interpolate spherically (Shoemake, SIGGRAPH 1985): direction and length both change evenly.

    The middle of a line between two vectors is shorter than both, and latents that are too short are
    denoised to pale pictures. The middle of the arc is not too short. Vectors without an arc between them
    (parallel, opposite or zero) are interpolated linearly.

    Args:
        first, second: vectors `[..., n]`.
        weights: weights `[...]`; 0 gives the first vector, 1 the second.
    """
    lengths = first.norm(dim=-1), second.norm(dim=-1)
    product = (lengths[0] * lengths[1]).clamp_min(torch.finfo(first.dtype).tiny)
    angle = ((first * second).sum(-1) / product).clamp(-1.0, 1.0).acos()
    sine = angle.sin()
    flat = (sine < _LEAST_SINE) | (lengths[0] == 0.0) | (lengths[1] == 0.0)
    divisor = torch.where(flat, torch.ones_like(sine), sine)
    shares = ((1.0 - weights) * angle).sin() / divisor, (weights * angle).sin() / divisor
    length = torch.lerp(lengths[0], lengths[1], weights)
    ratios = [length / own.clamp_min(torch.finfo(first.dtype).tiny) for own in lengths]
    arc = (shares[0] * ratios[0])[..., None] * first + (shares[1] * ratios[1])[..., None] * second
    return torch.where(flat[..., None], linear(first, second, weights), arc)


def _check_pipeline(pipeline: Any) -> None:
    name = type(pipeline).__name__
    if not kind_of(pipeline).video:
        raise UnsupportedModelError(
            f"{name} makes images; latents between key frames are those of clips."
        )
    loop = next(base for base in type(pipeline).__mro__ if "__call__" in vars(base))
    if loop.__name__ != "AnimateDiffPipeline":
        raise UnsupportedModelError(
            f"{name} is not known to make clips of some of a clip's frames, as key frames must be "
            "denoised; use AnimateDiffPipeline."
        )
    if pipeline.free_init_enabled or pipeline.free_noise_enabled:
        raise ConfigError(
            "FreeInit and FreeNoise exchange the noise that key frames share with their clip; disable them."
        )
    scheduler = type(pipeline.scheduler).__name__
    if scheduler != "DDIMScheduler":
        raise ConfigError(
            f"the scheduler must be DDIMScheduler, got {scheduler}: one that adds noise at each step "
            "gives key frames other noise than their clip's, and one that remembers its steps cannot "
            "take some of them alone."
        )


def _check_noise(pipeline: Any, noise: Tensor) -> None:
    kind = kind_of(pipeline)
    if noise.ndim != 5:
        raise ConfigError(
            f"noise for clips is [B, C, F, H, W], got {list(noise.shape)}; draw it with num_frames."
        )
    most = denoiser_of(pipeline).config.get("motion_max_seq_length")
    frames = noise.shape[2]
    if frames < 2 or (most is not None and frames > most):
        raise ConfigError(f"{kind.name} takes clips of 2 to {most} frames here, got {frames}.")
    if tuple(noise.shape[1:2] + noise.shape[3:]) != kind.latent_shape:
        raise ConfigError(
            f"noise of shape {list(noise.shape)} does not fit the latents {list(kind.latent_shape)} "
            f"(channels, height, width) of {kind.name}."
        )
