"""Clips from key frames, which are denoised as a shorter clip; the rest is interpolated. Approximate.

Neighbouring frames differ little. So most of the early steps, which settle content and motion, are run on
the key frames alone. The latents between them are interpolated and noised again as in SDEdit (Meng et al.,
arXiv 2108.01073), and the whole clip takes the last steps together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from forerun.diffusion.hooks import Wrapper, count_evaluations
from forerun.diffusion.key_frames import (
    fill_between,
    frames_at,
    key_frames_by_motion,
    motion_of,
    spaced_key_frames,
    spread_key_frames,
    with_frames,
)
from forerun.diffusion.pipelines import denoiser_of, kind_of, sample
from forerun.diffusion.settings import Interpolation, RefineSteps, StepInterval
from forerun.errors import ConfigError, UnsupportedModelError
from forerun.options import options


@options
class VideoLatentCacheConfig:
    """Settings of key frames, which are denoised fully, and of the frames between them.

    Args:
        key_interval: every `key_interval`-th frame and the last are key frames. Give this or `key_frames`.
        key_frames: number of key frames, including the first and the last frame.
        choose: `fixed` spaces key frames evenly; `motion` chooses them in each clip so that about equal
            motion lies between them.
        motion_steps: steps that all frames take before key frames are chosen by motion.
        interpolation: interpolation of the latents between key frames: `slerp` along the arc, `linear` along
            the line, or `nearest` for none.
        refine_steps: number of last steps that all frames take together; 0 leaves interpolated latents
            unchanged.
        refine_stride: number of the schedule's steps in one refining step. With more, refinement begins at
            more noise and repairs larger errors of interpolation, in few passes.
        finish_key_frames: True if the key frames first take the last steps by themselves, and are then
            interpolated; otherwise their predicted clean latents are interpolated.

    Raises:
        ConfigError: for values out of range, or without a number of key frames.
    """

    key_interval: StepInterval | None = None
    key_frames: Annotated[int, Field(ge=2)] | None = None
    choose: Literal["fixed", "motion"] = "fixed"
    motion_steps: StepInterval = 2
    interpolation: Interpolation = "slerp"
    refine_steps: RefineSteps = 8
    refine_stride: StepInterval = 1
    finish_key_frames: bool = True

    def __post_init__(self) -> None:
        if (self.key_interval is None) == (self.key_frames is None):
            raise ConfigError("set either key_interval or key_frames.")

    @property
    def steps_of_all(self) -> int:
        """Number of first steps that all frames take."""
        return self.motion_steps if self.choose == "motion" else 0

    @property
    def refined_share(self) -> int:
        """Number of last steps of the schedule that refinement replaces."""
        return self.refine_steps * self.refine_stride

    def fixed_key_frames(self, num_frames: int) -> Tensor:
        """Evenly spaced key frames of a clip, `[K]`; key frames by motion are as many.

        Raises:
            ConfigError: for an interval longer than the clip, or more key frames than frames.
        """
        if self.key_interval is not None:
            return spaced_key_frames(num_frames, self.key_interval)
        assert self.key_frames is not None
        return spread_key_frames(num_frames, self.key_frames)

    def check_steps(self, steps: int) -> None:
        """Check that a schedule of `steps` steps is long enough, and divisible by the stride.

        Raises:
            ConfigError: if it is not.
        """
        if steps % self.refine_stride:
            raise ConfigError(
                f"refine_stride must divide the {steps} steps, got {self.refine_stride}."
            )
        if self.steps_of_all + self.refined_share >= steps:
            before = f"motion_steps ({self.steps_of_all}) and " if self.steps_of_all else ""
            times = f" times refine_stride ({self.refine_stride})" if self.refine_stride > 1 else ""
            raise ConfigError(
                f"{before}refine_steps ({self.refine_steps}){times} must together be fewer than the {steps} "
                "steps, or there are none for the key frames alone."
            )

    def passes(self, num_frames: int, steps: int) -> int:
        """Number of passes of the denoiser for one clip without guidance, as frames times steps.

        Raises:
            ConfigError: if the clip or the schedule is too short.
        """
        self.check_steps(steps)
        keys = len(self.fixed_key_frames(num_frames))
        all_frames, alone = self.steps_of_all, steps - self.steps_of_all
        if keys < num_frames:
            all_frames += self.refine_steps
            alone -= 0 if self.finish_key_frames else self.refined_share
        return num_frames * all_frames + keys * alone


@dataclass(frozen=True)
class CachedClips:
    """Clips sampled from key frames.

    Args:
        latents: latents, `[B, C, F, H, W]`.
        images: images in [0, 1], `[B, F, C, H, W]`; `None` unless decoded.
        key_frames: key frames of each clip, ascending, `[B, K]`.
        passes: passes of the denoiser: frames times steps, over all clips and both halves of guidance.
        full_passes: passes of the full sampler.
    """

    latents: Tensor
    images: Tensor | None
    key_frames: Tensor
    passes: int
    full_passes: int

    approximate = True
    """Always True, because the clips differ from the full sampler's."""

    @property
    def factor(self) -> float:
        """Passes of the full sampler / passes used."""
        return self.full_passes / self.passes


@dataclass(frozen=True)
class _Stretch:
    """Result of some steps of the schedule.

    Args:
        latents: latents after the last step.
        clean: clean latents predicted at the last step.
    """

    latents: Tensor
    clean: Tensor


class _Sampler:
    """A pipeline's own loop over some of its schedule's steps."""

    def __init__(self, pipeline: Any, steps: int, conditions: dict[str, Any]) -> None:
        self.pipeline, self.steps, self._conditions = pipeline, steps, conditions
        self.timesteps: Tensor = pipeline.scheduler.timesteps
        self._clean = torch.empty(0)

    def run(self, latents: Tensor, first: int, last: int) -> _Stretch:
        """Take the steps from `first` up to, but not including, `last`."""
        with self._stretch(first, last):
            found = sample(
                self.pipeline, latents, steps=self.steps, latent=True, **self._conditions
            ).latents
        assert found is not None
        return _Stretch(found, self._clean)

    def with_steps(self, steps: int) -> _Sampler:
        """A sampler of the same pipeline with another number of steps."""
        return _Sampler(self.pipeline, steps, self._conditions)

    def decode(self, latents: Tensor) -> Tensor:
        """Decode clean latents to images, by the pipeline's loop without a step."""
        with self._stretch(self.steps, self.steps):
            found = sample(self.pipeline, latents, steps=self.steps, **self._conditions).images
        assert found is not None
        return found

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
    labels: Sequence[int] | None = None,
    prompt_embeds: Tensor | None = None,
    negative_prompt_embeds: Tensor | None = None,
    guidance_scale: float | None = None,
    latent: bool = False,
) -> CachedClips:
    """Sample clips from given noise, most steps on key frames alone.

    Caches applied to the pipeline stay active. With all frames as key frames, the result equals the full
    sampler's, bit for bit.

    Args:
        pipeline: AnimateDiff pipeline with DDIM.
        noise: initial noise, `[B, C, F, H, W]`.
        steps: number of steps of the full schedule.
        config: settings of key frames and of the frames between them.
        labels: one label per clip; see `forerun.diffusion.pipelines.sample`.
        prompt_embeds: prompt embeddings, in place of labels.
        negative_prompt_embeds: negative prompt embeddings for guidance.
        guidance_scale: guidance scale; 1 is no guidance, and the default is the pipeline's own.
        latent: True to return latents without decoding them.

    Raises:
        ConfigError: for noise or a number of frames or steps that do not match, for a scheduler other than
            DDIM, and for conditions that the pipeline does not take.
        UnsupportedModelError: for a pipeline that does not make clips, or cannot make them from fewer
            frames.
    """
    _check_pipeline(pipeline)
    _check_noise(pipeline, noise)
    config.check_steps(steps)
    conditions = {
        "labels": labels,
        "prompt_embeds": prompt_embeds,
        "negative_prompt_embeds": negative_prompt_embeds,
        "guidance_scale": guidance_scale,
    }
    sampler = _Sampler(pipeline, steps, conditions)
    with count_evaluations(pipeline) as counted:
        latents, keys = _denoise(sampler, noise, config)
    count, frames = noise.shape[0], noise.shape[2]
    halves = 2 if pipeline.do_classifier_free_guidance else 1
    return CachedClips(
        latents=latents,
        images=None if latent else sampler.decode(latents),
        key_frames=keys,
        passes=counted.frames,
        full_passes=halves * count * frames * steps,
    )


def _denoise(
    sampler: _Sampler, noise: Tensor, config: VideoLatentCacheConfig
) -> tuple[Tensor, Tensor]:
    """Denoise clips: the clean latents `[B, C, F, H, W]` and the key frames `[B, K]`."""
    count, frames = noise.shape[0], noise.shape[2]
    keys = config.fixed_key_frames(frames).expand(count, -1)
    start = noise
    if config.choose == "motion":
        seen = sampler.run(noise, 0, config.motion_steps)
        keys = key_frames_by_motion(motion_of(seen.clean), keys.shape[1])
        start = seen.latents
    split = sampler.steps - config.refined_share
    own = sampler.run(frames_at(start, keys), config.steps_of_all, split)
    if keys.shape[1] == frames:
        return sampler.run(own.latents, split, sampler.steps).latents, keys
    clean = own.clean
    if config.finish_key_frames or not config.refine_steps:
        clean = sampler.run(own.latents, split, sampler.steps).latents
    filled = fill_between(clean, keys, frames, config.interpolation)
    if not config.refine_steps:
        return filled, keys
    # Key frames continue from their own latents, which noise on their clean latents would not restore.
    noisy = with_frames(sampler.noisy(filled, noise, split), keys, own.latents)
    coarse = sampler.with_steps(sampler.steps // config.refine_stride)
    return coarse.run(noisy, split // config.refine_stride, coarse.steps).latents, keys


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
