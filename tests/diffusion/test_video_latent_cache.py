"""Video latent caching: all frames as key frames change nothing; passes are what the config says."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from diffusers import DDPMScheduler, DPMSolverMultistepScheduler

from forerun.diffusion.cfg_cache import apply_cfg_cache
from forerun.diffusion.hooks import count_evaluations
from forerun.diffusion.pipelines import draw_noise, kind_of, sample
from forerun.diffusion.settings import CFGCacheConfig, VideoLatentCacheConfig
from forerun.diffusion.video_latent_cache import CachedClips, fill_between, sample_clips
from forerun.errors import ConfigError, UnsupportedModelError
from tests.helpers import tiny_pipelines as tiny
from tests.helpers.covering import covering

STEPS = 6
FRAMES = 8
EVERY_WAY = [
    {"key_interval": 3},
    {"key_interval": 3, "finish_key_frames": False},
    {"key_interval": 2, "interpolation": "linear"},
    {"key_interval": 7, "refine_steps": 0, "interpolation": "linear"},
    {"key_interval": 7, "refine_steps": 5},
    {"key_interval": 4, "refine_steps": 2, "refine_stride": 2, "finish_key_frames": False},
]


def noise_of(pipeline: Any, frames: int = FRAMES, count: int = 2) -> torch.Tensor:
    return draw_noise(kind_of(pipeline), range(count), frames)


def full(pipeline: Any, latent: bool = True) -> torch.Tensor:
    settings: dict[str, Any] = {"steps": STEPS, "labels": [1, 2], "guidance_scale": 3.0}
    return sample(pipeline, noise_of(pipeline), latent=latent, **settings)


@cache
def plain(latent: bool = True) -> torch.Tensor:
    """Clips of a pipeline of its own."""
    return full(tiny.clip_pipeline(), latent)


def cached(pipeline: Any, noise: torch.Tensor | None = None, **changed: Any) -> CachedClips:
    """With the settings of `full`; what belongs to the config goes there."""
    config: dict[str, Any] = {"refine_steps": 2}
    settings: dict[str, Any] = {
        "steps": STEPS,
        "labels": [1, 2],
        "guidance_scale": 3.0,
    }
    for name, value in changed.items():
        (settings if name in settings else config)[name] = value
    noise = noise_of(pipeline) if noise is None else noise
    return sample_clips(pipeline, noise, config=VideoLatentCacheConfig(**config), **settings)


@pytest.mark.parametrize(("refine_steps", "finish"), covering([0, 2], [True, False]))
def test_all_frames_key_is_the_full_sampler_bit_for_bit(refine_steps: int, finish: bool) -> None:
    pipeline = tiny.clip_pipeline()
    clips = cached(pipeline, key_interval=1, refine_steps=refine_steps, finish_key_frames=finish)
    assert torch.equal(clips.latents, plain())
    assert torch.equal(clips.images, plain(latent=False))
    assert clips.passes == clips.full_passes
    assert clips.approximate


@pytest.mark.parametrize("guidance_scale", [pytest.param(1.0, marks=pytest.mark.slow), 3.0])
@pytest.mark.parametrize("settings", EVERY_WAY)
def test_passes_are_what_the_config_says(settings: dict[str, Any], guidance_scale: float) -> None:
    pipeline = tiny.clip_pipeline()
    with count_evaluations(pipeline) as counted:
        clips = cached(pipeline, guidance_scale=guidance_scale, **settings)
    both = 2 * (2 if guidance_scale > 1.0 else 1)
    config = VideoLatentCacheConfig(**{"refine_steps": 2, **settings})
    keys = len(clips.key_frames)
    replaced = 0 if config.finish_key_frames else config.refine_steps * config.refine_stride
    expected = keys * (STEPS - replaced) + FRAMES * config.refine_steps
    assert clips.passes == counted.frames == both * expected
    assert clips.full_passes == both * FRAMES * STEPS
    assert clips.factor == clips.full_passes / clips.passes


def test_key_frames_are_a_shorter_clip_from_the_same_noise() -> None:
    """Without refinement they are what the full sampler makes of their noise; the rest lies between."""
    pipeline = tiny.clip_pipeline()
    noise = noise_of(pipeline)
    keys = torch.tensor([0, 3, 6, 7])
    alone = sample(
        pipeline,
        noise[:, :, keys],
        steps=STEPS,
        labels=[1, 2],
        guidance_scale=3.0,
        latent=True,
    )
    clips = cached(pipeline, key_interval=3, refine_steps=0, finish_key_frames=False)
    assert torch.equal(clips.key_frames, keys)
    assert torch.equal(clips.latents, fill_between(alone, keys, "slerp"))


@pytest.mark.parametrize("stride", [1, 2])
def test_refinement_starts_at_its_own_noise_level(stride: int) -> None:
    """A denoiser that predicts no velocity scales every latent by a factor of the schedule alone.

    So each refined frame is the interpolated one with its own noise, scaled by the last steps; key frames
    go on from where they were.
    """
    pipeline = tiny.clip_pipeline()
    with torch.no_grad():
        pipeline.unet.conv_out.weight.zero_()
        pipeline.unet.conv_out.bias.zero_()
    noise, steps = noise_of(pipeline), 8
    clips = cached(
        pipeline,
        key_interval=7,
        refine_steps=2,
        refine_stride=stride,
        interpolation="linear",
        steps=steps,
    )
    scheduler = pipeline.scheduler
    scheduler.set_timesteps(steps // stride)
    share = scheduler.alphas_cumprod[scheduler.timesteps[-2]]

    def denoised(latents: torch.Tensor, schedule: int, taken: slice) -> torch.Tensor:
        scheduler.set_timesteps(schedule)
        for timestep in scheduler.timesteps[taken]:
            velocity = torch.zeros_like(latents)
            latents = scheduler.step(velocity, timestep, latents).prev_sample
        return latents

    start = noise[:, :, clips.key_frames]
    own = denoised(start, steps, slice(steps - 2 * stride))
    ends = denoised(own, steps, slice(steps - 2 * stride, None))
    filled = fill_between(ends, clips.key_frames, "linear")
    noisy = share.sqrt() * filled + (1.0 - share).sqrt() * noise
    noisy[:, :, clips.key_frames] = own
    expected = denoised(noisy, steps // stride, slice(-2, None))
    torch.testing.assert_close(clips.latents, expected)


@pytest.mark.parametrize(
    "settings",
    [EVERY_WAY[4], *(pytest.param(way, marks=pytest.mark.slow) for way in EVERY_WAY[::2][:2])],
)
def test_the_pipeline_is_left_as_it_was(settings: dict[str, Any]) -> None:
    pipeline = tiny.clip_pipeline()
    first = cached(pipeline, **settings).latents
    assert torch.equal(full(pipeline), plain())
    assert torch.equal(cached(pipeline, **settings).latents, first)
    assert not {"set_timesteps", "step"} & set(vars(pipeline.scheduler))
    assert "forward" not in vars(pipeline.unet)


def test_a_cfg_cache_stays_in_force() -> None:
    pipeline = tiny.clip_pipeline()
    without = cached(pipeline, key_interval=3)
    with apply_cfg_cache(pipeline, CFGCacheConfig(interval=1)):
        assert torch.equal(cached(pipeline, key_interval=3).latents, without.latents)
    with apply_cfg_cache(pipeline, CFGCacheConfig(interval=2)):
        assert cached(pipeline, key_interval=3).passes < without.passes


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"key_interval": 0}, "integer in \\[1, "),
        ({"key_interval": 2, "interpolation": "cubic"}, "'cubic'"),
        ({"key_interval": 2, "refine_steps": -1}, "refine_steps"),
        ({"key_interval": 2, "refine_stride": 0}, "refine_stride"),
    ],
)
def test_a_config_out_of_range_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        VideoLatentCacheConfig(**wrong)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"key_interval": 8}, r"\[1, 7\] for a clip of 8 frames, got 8"),
        ({"key_interval": 2, "refine_steps": 6}, r"refine_steps \(6\) .* 6 steps"),
        ({"key_interval": 2, "refine_stride": 4}, "divide the 6 steps, got 4"),
        ({"key_interval": 2, "refine_steps": 3, "refine_stride": 2}, r"stride \(2\) must be fewer"),
        ({"key_interval": 2, "labels": [1]}, "2 of them"),
    ],
)
def test_clips_and_schedules_that_are_too_short(wrong: dict[str, Any], words: str) -> None:
    pipeline = tiny.clip_pipeline()
    with count_evaluations(pipeline) as counted, pytest.raises(ConfigError, match=words):
        cached(pipeline, **wrong)
    assert counted.calls == 0


def test_noise_that_does_not_fit() -> None:
    pipeline = tiny.clip_pipeline()
    noise = noise_of(pipeline)
    for wrong, words in (
        (noise[:, :, 0], r"\[B, C, F, H, W\]"),
        (noise[:, :, :1], "2 to 8 frames here, got 1"),
        (noise_of(pipeline, 9), "2 to 8 frames here, got 9"),
        (noise[..., :4], r"\[4, 8, 8\]"),
    ):
        with pytest.raises(ConfigError, match=words):
            cached(pipeline, noise=wrong, key_interval=1)


def test_pipelines_that_cannot() -> None:
    images = tiny.unet_pipeline()
    config = VideoLatentCacheConfig(key_interval=2)
    noise = noise_of(tiny.clip_pipeline())
    with pytest.raises(UnsupportedModelError, match="makes images"):
        sample_clips(images, noise, steps=STEPS, config=config, labels=[1, 2])

    class OwnLoop(type(tiny.clip_pipeline())):  # type: ignore[misc]
        def __call__(self, num_frames: int, prompt_embeds: Any) -> None: ...

    pipeline = tiny.clip_pipeline()
    other = OwnLoop(**pipeline.components)
    with pytest.raises(UnsupportedModelError, match="OwnLoop"):
        sample_clips(other, noise, steps=STEPS, config=config, labels=[1, 2])
    pipeline.enable_free_init()
    with pytest.raises(ConfigError, match="FreeInit"):
        cached(pipeline, key_interval=2)


@pytest.mark.parametrize(
    ("scheduler", "reason"),
    [(DDPMScheduler, "adds noise"), (DPMSolverMultistepScheduler, "remembers its steps")],
)
def test_other_schedulers_are_refused_with_the_reason(scheduler: Any, reason: str) -> None:
    pipeline = tiny.clip_pipeline()
    pipeline.scheduler = scheduler(num_train_timesteps=64)
    with pytest.raises(ConfigError, match=rf"{scheduler.__name__}: .*{reason}"):
        cached(pipeline, key_interval=2)


def test_an_error_on_the_way_leaves_the_pipeline_as_it_was() -> None:
    pipeline = tiny.clip_pipeline()
    calls = []

    def fail(*_: Any) -> None:
        calls.append(1)
        if len(calls) > 3:
            raise RuntimeError("out of memory")

    hook = pipeline.unet.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        cached(pipeline, key_interval=3)
    hook.remove()
    assert torch.equal(full(pipeline), plain())
    assert not {"set_timesteps", "step"} & set(vars(pipeline.scheduler))
