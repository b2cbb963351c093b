"""Feature caching: an interval of 1 changes nothing, counts follow the interval, removal restores."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from forerun.diffusion.feature_cache import apply_feature_cache
from forerun.diffusion.hooks import count_evaluations
from forerun.diffusion.pipelines import draw_noise, kind_of, sample
from forerun.diffusion.settings import FeatureCacheConfig
from forerun.errors import ConfigError, UnsupportedModelError
from tests.helpers import tiny_pipelines as tiny

STEPS = 6
PIPELINES: dict[str, Callable[[], Any]] = {
    "unet": tiny.unet_pipeline,
    "clips": tiny.clip_pipeline,
    "two calls": tiny.two_call_pipeline,
    "unguided": tiny.unguided_pipeline,
}


def run(pipeline: Any, count: int = 2, steps: int = STEPS) -> Tensor:
    kind = kind_of(pipeline)
    noise = draw_noise(kind, range(count), 2 if kind.video else None)
    settings: dict[str, Any] = {"generator": torch.Generator().manual_seed(0)}
    if kind.guided:
        settings |= {"labels": range(count), "guidance_scale": 3.0, "latent": True}
    return sample(pipeline, noise, steps=steps, **settings)


@cache
def plain_of(name: str) -> Tensor:
    """Samples of a pipeline without a cache."""
    return run(PIPELINES[name]())


@pytest.mark.parametrize("name", PIPELINES)
def test_interval_1_is_the_plain_pipeline_bit_for_bit(name: str) -> None:
    pipeline = PIPELINES[name]()
    with apply_feature_cache(pipeline, FeatureCacheConfig(interval=1)) as features:
        assert torch.equal(run(pipeline), plain_of(name))
    assert features.reused_calls == 0
    assert features.approximate


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("interval", [2, 3])
def test_deep_levels_run_at_every_nth_step(name: str, interval: int) -> None:
    pipeline = PIPELINES[name]()
    deep = {"calls": 0}
    inner = pipeline.unet.mid_block.resnets[0]
    inner.register_forward_hook(lambda *_: deep.update(calls=deep["calls"] + 1))
    with apply_feature_cache(pipeline, FeatureCacheConfig(interval=interval)) as cache:
        samples = run(pipeline)
    branches = 2 if name == "two calls" else 1
    assert cache.full_calls == deep["calls"] == branches * STEPS // interval
    assert cache.full_calls + cache.reused_calls == branches * STEPS
    assert not torch.equal(samples, plain_of(name))


def test_branches_of_guidance_keep_their_own_features() -> None:
    """With the same features for both, their predictions would differ by the shallow levels alone."""
    batched, two_calls = tiny.unet_pipeline(), tiny.two_call_pipeline()
    found = []
    for pipeline in (batched, two_calls):
        with apply_feature_cache(pipeline, FeatureCacheConfig(interval=3)):
            found.append(run(pipeline))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


def test_features_of_an_unchanged_input_are_exact() -> None:
    """A network whose input and timestep stay the same loses nothing by reuse."""
    pipeline = tiny.unet_pipeline()
    noise, embeds = torch.randn(2, 4, 8, 8), torch.randn(2, 1, tiny.WIDTH)

    def predict() -> Tensor:
        with torch.no_grad():
            found: Tensor = pipeline.unet(noise, 9, encoder_hidden_states=embeds).sample
        return found

    plain = predict()
    with apply_feature_cache(pipeline, FeatureCacheConfig(interval=3)) as cache:
        predict()
        cache._steps.timestep = 10.0  # The same call as another step.
        assert torch.equal(predict(), plain)
        assert cache.reused_calls == 1


@pytest.mark.parametrize("name", PIPELINES)
def test_removal_restores_the_pipeline(name: str) -> None:
    pipeline = PIPELINES[name]()
    with apply_feature_cache(pipeline, FeatureCacheConfig(interval=3)):
        run(pipeline, steps=2)
    assert torch.equal(run(pipeline), plain_of(name))
    held = [module for module in pipeline.unet.modules() if "forward" in vars(module)]
    assert not held
    assert "set_timesteps" not in vars(pipeline.scheduler)


def test_a_sampling_run_does_not_see_the_one_before() -> None:
    pipeline = tiny.unet_pipeline()
    with apply_feature_cache(pipeline, FeatureCacheConfig(interval=4)) as cache:
        first = run(pipeline)
        run(pipeline, count=3, steps=2)
        run(pipeline, steps=1)
        assert torch.equal(run(pipeline), first)
    assert cache.full_calls == 2 + 1 + 1 + 2


def test_a_reused_step_takes_fewer_operations() -> None:
    pipeline = tiny.unet_pipeline()
    counts = []
    for interval in (1, 2, 6):
        with (
            apply_feature_cache(pipeline, FeatureCacheConfig(interval=interval)),
            count_evaluations(pipeline, flops=True) as counted,
        ):
            run(pipeline)
        counts.append(counted.flops)
        assert counted.calls == STEPS
    full, half, most = counts
    # Linear in the number of full steps: 6, 3 and 1 of 6.
    assert full > half > most > 0
    assert (full - half) * 5 == (full - most) * 3


def test_a_config_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError):
        FeatureCacheConfig(interval=0)


def test_what_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="enable_cache"):
        apply_feature_cache(tiny.transformer_pipeline(), FeatureCacheConfig())
