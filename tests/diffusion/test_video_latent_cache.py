"""Video latent caching: all frames as key frames change nothing; passes are what the config says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import DDPMScheduler, DPMSolverMultistepScheduler

from forerun.diffusion.cfg_cache import CFGCacheConfig, apply_cfg_cache
from forerun.diffusion.hooks import count_evaluations
from forerun.diffusion.key_frames import (
    fill_between,
    frames_at,
    key_frames_by_motion,
    motion_of,
    with_frames,
)
from forerun.diffusion.pipelines import Samples, draw_noise, kind_of, sample
from forerun.diffusion.video_latent_cache import (
    CachedClips,
    VideoLatentCacheConfig,
    sample_clips,
)
from forerun.errors import ConfigError, UnsupportedModelError
from tests.helpers import tiny_pipelines as tiny
from tests.helpers.covering import covering

STEPS = 6
FRAMES = 8
EVERY_WAY = [
    {"key_interval": 3},
    {"key_interval": 3, "finish_key_frames": False},
    {"key_frames": 4, "interpolation": "linear"},
    {"key_interval": 3, "choose": "motion"},
    {"key_frames": 3, "choose": "motion", "motion_steps": 1, "finish_key_frames": False},
    {"key_interval": 7, "refine_steps": 0, "interpolation": "nearest"},
    {"key_frames": 2, "refine_steps": 5},
    {"key_frames": 3, "refine_steps": 2, "refine_stride": 2, "finish_key_frames": False},
]


def noise_of(pipeline: Any, frames: int = FRAMES, count: int = 2) -> torch.Tensor:
    return draw_noise(kind_of(pipeline), range(count), frames)


def full(pipeline: Any, latent: bool = True, **changed: Any) -> Samples:
    settings: dict[str, Any] = {"steps": STEPS, "labels": [1, 2], "guidance_scale": 3.0}
    settings["latent"] = latent
    return sample(pipeline, noise_of(pipeline), **{**settings, **changed})


def cached(pipeline: Any, noise: torch.Tensor | None = None, **changed: Any) -> CachedClips:
    """With the settings of `full`; what belongs to the config goes there."""
    config: dict[str, Any] = {"refine_steps": 2}
    settings: dict[str, Any] = {
        "steps": STEPS,
        "labels": [1, 2],
        "guidance_scale": 3.0,
        "latent": True,
    }
    for name, value in changed.items():
        (settings if name in settings else config)[name] = value
    noise = noise_of(pipeline) if noise is None else noise
    return sample_clips(pipeline, noise, config=VideoLatentCacheConfig(**config), **settings)


@pytest.mark.parametrize(
    ("refine_steps", "choose", "finish"), covering([0, 2], ["fixed", "motion"], [True, False])
)
def test_all_frames_key_is_the_full_sampler_bit_for_bit(
    refine_steps: int, choose: str, finish: bool
) -> None:
    pipeline = tiny.clip_pipeline()
    clips = cached(
        pipeline,
        key_interval=1,
        refine_steps=refine_steps,
        choose=choose,
        finish_key_frames=finish,
        latent=False,
    )
    latents, images = full(pipeline).latents, full(pipeline, latent=False).images
    assert latents is not None
    assert images is not None
    assert torch.equal(clips.latents, latents)
    assert clips.images is not None
    assert torch.equal(clips.images, images)
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
    assert clips.passes == counted.frames == both * config.passes(FRAMES, STEPS)
    assert clips.full_passes == both * FRAMES * STEPS
    assert clips.factor == clips.full_passes / clips.passes
    assert clips.images is None


def test_passes_by_hand() -> None:
    """Four of eight frames take all six steps, and all eight the last two again: 24 + 16."""
    assert VideoLatentCacheConfig(key_frames=4, refine_steps=2).passes(8, 6) == 40
    short = VideoLatentCacheConfig(key_frames=4, refine_steps=2, finish_key_frames=False)
    assert short.passes(8, 6) == 4 * 4 + 8 * 2
    moved = VideoLatentCacheConfig(key_frames=4, refine_steps=2, choose="motion", motion_steps=1)
    assert moved.passes(8, 6) == 8 * 1 + 4 * 5 + 8 * 2


def test_key_frames_are_a_shorter_clip_from_the_same_noise() -> None:
    """Without refinement they are what the full sampler makes of their noise; the rest lies between."""
    pipeline = tiny.clip_pipeline()
    noise = noise_of(pipeline)
    keys = torch.tensor([0, 3, 6, 7]).expand(2, -1)
    alone = sample(
        pipeline,
        frames_at(noise, keys),
        steps=STEPS,
        labels=[1, 2],
        guidance_scale=3.0,
        latent=True,
    ).latents
    assert alone is not None
    clips = cached(pipeline, key_interval=3, refine_steps=0, finish_key_frames=False)
    assert torch.equal(clips.key_frames, keys)
    assert torch.equal(clips.latents, fill_between(alone, keys, FRAMES, "slerp"))


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
    assert len(scheduler.timesteps) == steps // stride
    share = scheduler.alphas_cumprod[scheduler.timesteps[-2]]

    def denoised(latents: torch.Tensor, schedule: int, taken: slice) -> torch.Tensor:
        scheduler.set_timesteps(schedule)
        for timestep in scheduler.timesteps[taken]:
            velocity = torch.zeros_like(latents)
            latents = scheduler.step(velocity, timestep, latents).prev_sample
        return latents

    start = frames_at(noise, clips.key_frames)
    own = denoised(start, steps, slice(steps - 2 * stride))
    ends = denoised(own, steps, slice(steps - 2 * stride, None))
    filled = fill_between(ends, clips.key_frames, FRAMES, "linear")
    noisy = share.sqrt() * filled + (1.0 - share).sqrt() * noise
    expected = denoised(with_frames(noisy, clips.key_frames, own), steps // stride, slice(-2, None))
    torch.testing.assert_close(clips.latents, expected)


def test_key_frames_by_motion_are_those_of_the_expected_clip() -> None:
    """What the first steps expect of the clip decides, in each clip by itself."""
    pipeline = tiny.clip_pipeline()
    noise = noise_of(pipeline)
    louder = torch.linspace(0.2, 2.0, FRAMES)[:, None, None]
    noise *= torch.stack((louder, louder.flip(0)))[:, None]
    clips = cached(pipeline, noise=noise, key_frames=4, choose="motion", motion_steps=1)
    pipeline.scheduler.set_timesteps(STEPS)
    first = pipeline.scheduler.timesteps[0]
    embeds = torch.zeros(4, 1, tiny.WIDTH)
    embeds[2, 0, 1] = embeds[3, 0, 2] = 1.0
    with torch.no_grad():
        velocity = pipeline.unet(
            torch.cat((noise, noise)),
            first,
            encoder_hidden_states=embeds.repeat_interleave(FRAMES, 0),
        ).sample
    without, with_label = velocity.chunk(2)
    expected = pipeline.scheduler.step(
        without + 3.0 * (with_label - without), first, noise
    ).pred_original_sample
    assert torch.equal(clips.key_frames, key_frames_by_motion(motion_of(expected), 4))
    assert clips.key_frames[0].tolist() != clips.key_frames[1].tolist()
    assert not torch.equal(clips.key_frames, key_frames_by_motion(motion_of(noise), 4))


@pytest.mark.parametrize(
    "settings",
    [*EVERY_WAY[::4], *(pytest.param(way, marks=pytest.mark.slow) for way in EVERY_WAY[2::4])],
)
def test_the_pipeline_is_left_as_it_was(settings: dict[str, Any]) -> None:
    pipeline = tiny.clip_pipeline()
    before = full(pipeline).latents
    first = cached(pipeline, **settings).latents
    again = full(pipeline).latents
    assert before is not None
    assert again is not None
    assert torch.equal(again, before)
    assert torch.equal(cached(pipeline, **settings).latents, first)
    assert not {"set_timesteps", "step"} & set(vars(pipeline.scheduler))
    assert "forward" not in vars(pipeline.unet)


def test_a_cfg_cache_stays_in_force() -> None:
    pipeline = tiny.clip_pipeline()
    plain = cached(pipeline, key_interval=3)
    with apply_cfg_cache(pipeline, CFGCacheConfig(interval=1)):
        assert torch.equal(cached(pipeline, key_interval=3).latents, plain.latents)
    with apply_cfg_cache(pipeline, CFGCacheConfig(interval=2)):
        assert cached(pipeline, key_interval=3).passes < plain.passes


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({}, "either key_interval or key_frames"),
        ({"key_interval": 2, "key_frames": 4}, "either key_interval or key_frames"),
        ({"key_interval": 0}, "integer in \\[1, "),
        ({"key_frames": 1}, "integer in \\[2, "),
        ({"key_interval": 2, "choose": "luck"}, "'luck'"),
        ({"key_interval": 2, "interpolation": "cubic"}, "'cubic'"),
        ({"key_interval": 2, "motion_steps": 0}, "motion_steps"),
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
        ({"key_frames": 9}, r"\[2, 8\] for a clip of 8 frames, got 9"),
        ({"key_interval": 2, "refine_steps": 6}, r"refine_steps \(6\) .* 6 steps"),
        ({"key_interval": 2, "refine_steps": 4, "choose": "motion"}, r"motion_steps \(2\)"),
        ({"key_interval": 2, "refine_stride": 4}, "divide the 6 steps, got 4"),
        ({"key_interval": 2, "refine_steps": 3, "refine_stride": 2}, r"stride \(2\) must together"),
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
    before = full(pipeline).latents
    calls = []

    def fail(*_: Any) -> None:
        calls.append(1)
        if len(calls) > 3:
            raise RuntimeError("out of memory")

    hook = pipeline.unet.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        cached(pipeline, key_interval=3)
    hook.remove()
    again = full(pipeline).latents
    assert before is not None
    assert again is not None
    assert torch.equal(again, before)
    assert not {"set_timesteps", "step"} & set(vars(pipeline.scheduler))
