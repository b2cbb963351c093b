"""CFG caching: counts follow the formula, full schedules change nothing, removal restores."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from diffusers import (
    FasterCacheConfig,
    FirstBlockCacheConfig,
    PyramidAttentionBroadcastConfig,
    TaylorSeerCacheConfig,
)
from diffusers.hooks import apply_first_block_cache
from torch import Tensor

from forerun.diffusion.cfg_cache import CFGCache, apply_cfg_cache
from forerun.diffusion.feature_cache import FeatureCache, apply_feature_cache
from forerun.diffusion.hooks import Evaluations, Handle, count_evaluations
from forerun.diffusion.pipelines import denoiser_of, draw_noise, kind_of, sample
from forerun.diffusion.settings import USUAL_DRIFT, CFGCacheConfig, FeatureCacheConfig
from forerun.errors import ConfigError
from tests.helpers import tiny_pipelines as tiny

STEPS = 8
PIPELINES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "unet": (tiny.unet_pipeline, {}),
    "transformer": (tiny.transformer_pipeline, {}),
    "clips": (tiny.clip_pipeline, {}),
    "two calls": (
        tiny.two_call_pipeline,
        {"guidance": "two_call", "unconditional_first": False},
    ),
}

every_pipeline = pytest.mark.parametrize("name", PIPELINES)
# Clips take longest; what is said of any schedule is quick without them.
clips_slow = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "clips")) for name in PIPELINES]
)


def run(pipeline: Any, steps: int = STEPS, seeds: tuple[int, ...] = (0, 1)) -> Tensor:
    kind = kind_of(pipeline)
    latent = kind.conditioning == "prompt"
    noise = draw_noise(kind, seeds, 2 if kind.video else None)
    return sample(
        pipeline, noise, steps=steps, labels=[1] * len(seeds), guidance_scale=3.0, latent=latent
    )


@cache
def plain_of(name: str) -> Tensor:
    """Samples of a pipeline without a cache."""
    return run(PIPELINES[name][0]())


def cached(name: str, **schedule: Any) -> tuple[Tensor, Tensor, CFGCache, Evaluations]:
    """Samples without and with a cache, the cache, and what was evaluated."""
    make, order = PIPELINES[name]
    pipeline = make()
    with (
        apply_cfg_cache(pipeline, CFGCacheConfig(**{**order, **schedule})) as cache,
        count_evaluations(pipeline) as counted,
    ):
        samples = run(pipeline)
    return plain_of(name), samples, cache, counted


@every_pipeline
def test_interval_1_is_the_plain_pipeline_bit_for_bit(name: str) -> None:
    plain, samples, cache, counted = cached(name, interval=1)
    assert torch.equal(samples, plain)
    assert (cache.full_steps, cache.reused_steps, cache.factor) == (STEPS, 0, 1.0)
    assert counted.samples == 2 * 2 * STEPS


@every_pipeline
@pytest.mark.parametrize("interval", [2, 4])
def test_evaluations_follow_the_formula(name: str, interval: int) -> None:
    plain, samples, cache, counted = cached(name, interval=interval)
    assert cache.full_steps == STEPS // interval
    assert cache.factor == pytest.approx(2 * interval / (interval + 1))
    # Each half runs two samples; so many were really computed.
    assert counted.samples == 2 * cache.evaluations
    assert not torch.equal(samples, plain)
    assert cache.approximate


@clips_slow
def test_a_bound_of_0_is_the_plain_pipeline_bit_for_bit(name: str) -> None:
    plain, samples, cache, _ = cached(name, drift_bound=0.0)
    assert torch.equal(samples, plain)
    assert cache.reused_steps == 0


@clips_slow
def test_the_gate_holds_the_drift_within_its_bound(name: str) -> None:
    plain, samples, cache, counted = cached(name, drift_bound=1e-7)
    # Halves that are run apart may be rounded otherwise than together.
    torch.testing.assert_close(samples, plain, rtol=1e-4, atol=1e-4)
    assert counted.samples == 2 * 2 * STEPS
    middle = sorted(cache.drifts)[len(cache.drifts) // 2]
    _, _, cache, _ = cached(name, drift_bound=middle)
    kept = sum(drift <= middle for drift in cache.drifts)
    assert cache.reused_steps == kept > 0
    assert cache.full_steps == STEPS - kept


@clips_slow
def test_an_interval_limits_the_gate(name: str) -> None:
    _, _, cache, _ = cached(name, drift_bound=1e9, interval=4)
    assert cache.full_steps == STEPS // 4
    _, _, cache, _ = cached(name, drift_bound=1e9)
    assert cache.full_steps == 1


def test_extrapolation_is_exact_for_what_is_linear_in_the_timestep() -> None:
    pipeline = tiny.unet_pipeline()
    slope = torch.randn(1, 4, 8, 8)

    def linear(latents: Tensor, timestep: Tensor, **kwargs: Any) -> tuple[Tensor]:
        condition = kwargs["encoder_hidden_states"].sum((1, 2)).view(-1, 1, 1, 1)
        return (0.1 * latents + slope * (condition - 0.5) * timestep / 64.0,)

    pipeline.unet.forward = linear
    plain = run(pipeline)
    schedule: dict[str, Any] = {"interval": 3}
    for extrapolate, same in ((True, True), (False, False)):
        with apply_cfg_cache(
            pipeline, CFGCacheConfig(extrapolate=extrapolate, **schedule)
        ) as cache:
            samples = run(pipeline)
        assert torch.allclose(samples, plain, atol=1e-4) == same
        assert cache.reused_steps > 0
    assert pipeline.unet.forward is linear


@every_pipeline
def test_removal_restores_the_pipeline(name: str) -> None:
    make, order = PIPELINES[name]
    pipeline = make()
    denoiser, scheduler = denoiser_of(pipeline), pipeline.scheduler
    before = set(vars(denoiser)), set(vars(scheduler))
    cache = apply_cfg_cache(pipeline, CFGCacheConfig(**{**order, "interval": 4}))
    run(pipeline, steps=2)
    cache.remove()
    assert (set(vars(denoiser)), set(vars(scheduler))) == before
    assert torch.equal(run(pipeline), plain_of(name))
    cache.remove()


@every_pipeline
def test_a_sampling_run_does_not_see_the_one_before(name: str) -> None:
    make, order = PIPELINES[name]
    pipeline = make()
    with apply_cfg_cache(pipeline, CFGCacheConfig(**{**order, "interval": 3})) as cache:
        first = run(pipeline)
        run(pipeline, steps=1, seeds=(5, 6))
        run(pipeline, steps=4, seeds=(7, 8, 9))
        assert torch.equal(run(pipeline), first)
    # Of 8, 1, 4 and 8 steps, the first of each run and every third.
    assert cache.full_steps == 3 + 1 + 2 + 3


def test_caches_are_removed_in_any_order() -> None:
    pipeline = tiny.unet_pipeline()
    plain = run(pipeline)
    guidance = apply_cfg_cache(pipeline, CFGCacheConfig(interval=1))
    features = apply_feature_cache(pipeline, FeatureCacheConfig(interval=1))
    with count_evaluations(pipeline) as counted:
        assert torch.equal(run(pipeline), plain)
        guidance.remove()
        assert torch.equal(run(pipeline), plain)
    features.remove()
    assert counted.calls == 2 * STEPS
    assert "forward" not in vars(pipeline.unet)
    assert torch.equal(run(pipeline), plain)


def test_both_caches_together_keep_the_branches_apart() -> None:
    """The order of the caches does not decide whose features are reused."""
    guidance = CFGCacheConfig(interval=2, guidance="two_call", unconditional_first=False)
    found = []
    for outer in (False, True):
        pipeline = tiny.two_call_pipeline()
        applied: list[Callable[[], Handle]] = [
            partial(apply_cfg_cache, pipeline, guidance),
            partial(apply_feature_cache, pipeline, FeatureCacheConfig(interval=2)),
        ]
        handles = [apply() for apply in (applied[::-1] if outer else applied)]
        found.append(run(pipeline))
        features = next(handle for handle in handles if isinstance(handle, FeatureCache))
        # The conditional call reuses at every other step; the other only runs at those between.
        assert (features.full_calls, features.reused_calls) == (STEPS, STEPS // 2)
    assert all(torch.equal(other, found[0]) for other in found)


def test_a_scheduler_may_be_exchanged() -> None:
    pipeline = tiny.unet_pipeline()
    with apply_cfg_cache(pipeline, CFGCacheConfig(interval=3)):
        first = run(pipeline)
        pipeline.scheduler = type(pipeline.scheduler).from_config(pipeline.scheduler.config)
        assert torch.equal(run(pipeline), first)
        assert torch.equal(run(pipeline), first)


def run_wan(pipeline: Any) -> Tensor:
    embeds = torch.ones(1, 2, tiny.WIDTH)
    found: Tensor = pipeline(
        prompt_embeds=embeds,
        negative_prompt_embeds=torch.zeros_like(embeds),
        height=64,
        width=64,
        num_frames=9,
        num_inference_steps=STEPS,
        guidance_scale=3.0,
        generator=torch.Generator().manual_seed(0),
        output_type="latent",
    ).frames
    return found


def test_a_two_call_pipeline_of_diffusers_with_its_own_cache_below() -> None:
    """FirstBlockCache skips blocks inside a call, the CFG cache skips calls; each knows its branch."""
    pipeline = tiny.wan_pipeline()
    plain = run_wan(pipeline)
    with apply_cfg_cache(pipeline, CFGCacheConfig(interval=1)):
        assert torch.equal(run_wan(pipeline), plain)
    flops, samples = {}, {}
    for interval in (1, 2):
        for blocks in (False, True):
            if blocks:
                pipeline.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.2))
            with (
                apply_cfg_cache(pipeline, CFGCacheConfig(interval=interval)) as cache,
                count_evaluations(pipeline, flops=True) as counted,
            ):
                samples[interval, blocks] = run_wan(pipeline)
            if blocks:
                pipeline.transformer.disable_cache()
            flops[interval, blocks] = counted.flops
            assert counted.calls == cache.evaluations == STEPS + STEPS // interval
    assert flops[2, False] * 4 == flops[1, False] * 3
    assert flops[2, True] < min(flops[1, True], flops[2, False])
    for found in samples.values():
        assert float((found - plain).norm() / plain.norm()) < 0.1
    assert torch.equal(run_wan(pipeline), plain)


def run_cog(pipeline: Any, count: int) -> Tensor:
    embeds = torch.eye(tiny.WIDTH)[:count, None]
    found: Tensor = pipeline(
        prompt_embeds=embeds,
        negative_prompt_embeds=torch.zeros_like(embeds),
        latents=torch.randn(count, 1, 4, 8, 8, generator=torch.Generator().manual_seed(0)),
        height=64,
        width=64,
        num_frames=1,
        num_inference_steps=STEPS,
        guidance_scale=3.0,
        output_type="latent",
    ).frames
    return found


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    "blocks",
    [
        FirstBlockCacheConfig(threshold=0.3),
        TaylorSeerCacheConfig(
            cache_interval=3,
            taylor_factors_dtype=torch.float32,
            cache_identifiers=["transformer_blocks.*attn1"],
        ),
    ],
    ids=["first block", "taylor"],
)
def test_a_batched_pipeline_of_diffusers_with_its_own_cache_below(blocks: Any, count: int) -> None:
    """Such a cache keeps what belongs to a half apart, else one sample alone would silently meet both."""
    pipeline = tiny.cog_pipeline()
    plain = run_cog(pipeline, count)
    flops, samples = {}, {}
    for interval in (1, 2):
        pipeline.transformer.enable_cache(blocks)
        with (
            apply_cfg_cache(pipeline, CFGCacheConfig(interval=interval)) as cache,
            count_evaluations(pipeline, flops=True) as counted,
        ):
            samples[interval] = run_cog(pipeline, count)
        pipeline.transformer.disable_cache()
        flops[interval] = counted.flops
        assert counted.calls == cache.evaluations == STEPS + STEPS // interval
    pipeline.transformer.enable_cache(blocks)
    alone = run_cog(pipeline, count)
    pipeline.transformer.disable_cache()
    assert flops[2] < flops[1]
    assert not torch.equal(alone, plain)
    if isinstance(blocks, TaylorSeerCacheConfig):
        # Its steps are fixed, so that halves run one by one are those of one batch.
        assert torch.allclose(samples[1], alone, atol=1e-4)
    for found in samples.values():
        assert float((found - plain).norm() / plain.norm()) < 0.1
    assert torch.equal(run_cog(pipeline, count), plain)


@pytest.mark.parametrize("config", [FasterCacheConfig, PyramidAttentionBroadcastConfig])
def test_a_cache_with_one_state_for_both_halves_is_refused(config: Any) -> None:
    pipeline = tiny.cog_pipeline()
    settings = {"spatial_attention_block_skip_range": 2, "current_timestep_callback": lambda: 500}
    pipeline.transformer.enable_cache(config(**settings))
    with (
        apply_cfg_cache(pipeline, CFGCacheConfig(interval=2)),
        pytest.raises(ConfigError, match=r"Hook.*one state"),
    ):
        run_cog(pipeline, 1)


def test_a_cache_that_was_applied_by_its_function_is_seen_too() -> None:
    pipeline = tiny.cog_pipeline()
    apply_first_block_cache(pipeline.transformer, FirstBlockCacheConfig(threshold=0.0))
    alone = run_cog(pipeline, 1)
    with (
        apply_cfg_cache(pipeline, CFGCacheConfig(interval=2)) as cache,
        count_evaluations(pipeline) as counted,
    ):
        samples = run_cog(pipeline, 1)
        assert torch.equal(run_cog(pipeline, 1), samples)
    assert counted.calls == cache.evaluations == 2 * (STEPS + STEPS // 2)
    assert float((samples - alone).norm() / alone.norm()) < 0.1


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="no classifier-free guidance"):
        apply_cfg_cache(tiny.unguided_pipeline(), CFGCacheConfig(interval=2))
    with pytest.raises(ConfigError, match="is not known"):
        apply_cfg_cache(tiny.two_call_pipeline(), CFGCacheConfig(interval=2))
    late = CFGCacheConfig(interval=2, guidance="two_call", unconditional_first=True)
    with pytest.raises(ConfigError, match="unconditional call first"):
        apply_cfg_cache(tiny.two_call_pipeline(True), late)


@clips_slow
def test_a_run_without_guidance_is_refused(name: str) -> None:
    make, order = PIPELINES[name]
    pipeline = make()
    kind = kind_of(pipeline)
    noise = draw_noise(kind, (0, 1), 4 if kind.video else None)
    with (
        apply_cfg_cache(pipeline, CFGCacheConfig(**{**order, "interval": 2})),
        pytest.raises(ConfigError, match="without guidance"),
    ):
        sample(
            pipeline,
            noise,
            steps=4,
            labels=[1, 2],
            guidance_scale=1.0,
            latent=kind.conditioning == "prompt",
        )


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval": 0},
        {"drift_bound": -0.1},
        {"drift_bound": float("nan")},
        {"interval": 2, "window": (0.5, 0.2)},
        {"interval": 2, "window": (0.0, 1.5)},
        {"interval": 2, "guidance": "three_call"},
    ],
)
def test_a_config_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        CFGCacheConfig(**wrong)


def test_without_a_schedule_drift_is_bounded() -> None:
    assert CFGCacheConfig().bound == USUAL_DRIFT
    assert CFGCacheConfig(interval=2).bound is None
    assert CFGCacheConfig(interval=2, drift_bound=0.1).bound == 0.1
