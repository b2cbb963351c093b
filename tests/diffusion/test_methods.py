"""One way to run every method: the same noise for all, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from diffusers import DDPMScheduler, FlowMatchEulerDiscreteScheduler

from forerun.diffusion.methods import Job, exchange_scheduler, make
from forerun.diffusion.pipelines import GuidedDenoiser, decode, denoiser_of, kind_of
from forerun.diffusion.settings import CFGCacheConfig, FeatureCacheConfig, SpeculativeSamplingConfig
from forerun.diffusion.speculative_sampling import Draws, sample_plainly
from forerun.diffusion.transitions import Transitions
from forerun.errors import UnknownNameError, UnsupportedModelError
from forerun.progress import watched_by
from tests.helpers.tiny_pipelines import transformer_pipeline, unet_pipeline, unguided_pipeline

JOB = Job(range(3), 8, [1, 4, 2], guidance_scale=2.5)


@pytest.mark.parametrize("eta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("config", [CFGCacheConfig(interval=1), FeatureCacheConfig(1)])
def test_a_cache_that_keeps_nothing_changes_nothing(eta: float, config: Any) -> None:
    pipeline, job = unet_pipeline(), replace(JOB, eta=eta)
    full, cached = make(pipeline, job), make(pipeline, job, config)
    assert torch.equal(full.images, cached.images)
    assert (full.exact, cached.exact) == (True, False)


@pytest.mark.parametrize("name", ["ddpm", "ddim", "euler_ancestral"])
def test_the_pipelines_own_loop_is_plain_sampling(name: str) -> None:
    """With guidance and the same noise, through each scheduler."""
    pipeline = unet_pipeline()
    exchange_scheduler(pipeline, name)
    job = replace(JOB, eta=0.6 if name == "ddim" else 0.0)
    transitions = Transitions.of(pipeline.scheduler, job.steps, job.eta)
    draws = Draws.of(job.seeds, job.steps, kind_of(pipeline).noise_shape(1)[1:])
    ours = sample_plainly(GuidedDenoiser(pipeline, **job.conditions), transitions, draws)
    theirs = make(pipeline, job).images
    torch.testing.assert_close(decode(pipeline, ours), theirs, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("maker", [unet_pipeline, transformer_pipeline, unguided_pipeline])
def test_every_step_is_reported(maker: Any) -> None:
    """Of the loops of diffusers, whose own bars come back afterwards."""
    pipeline, seen = maker(), []
    labels = None if maker is unguided_pipeline else JOB.labels
    if maker is unguided_pipeline:
        exchange_scheduler(pipeline, "ddpm")
    job = replace(JOB, labels=labels, eta=1.0 if maker is unet_pipeline else 0.0)
    with watched_by(lambda what, done, total: seen.append((what, done, total))):
        make(pipeline, job)
    assert seen == [("denoising steps", step, 8) for step in range(1, 9)]
    assert "progress_bar" not in vars(pipeline)


def test_a_sample_is_the_same_alone() -> None:
    pipeline, job = unet_pipeline(), replace(JOB, eta=1.0)
    for config in (None, SpeculativeSamplingConfig(4)):
        together = make(pipeline, job, config).images
        own = replace(job, seeds=[1], labels=[4])
        torch.testing.assert_close(
            make(pipeline, own, config).images[0], together[1], atol=1e-4, rtol=1e-3
        )


def test_prompts_for_nothing_are_used() -> None:
    pipeline = unet_pipeline()
    prompts, nothing = torch.randn(2, 3, 3, 8).unbind()
    job = replace(JOB, labels=None, prompt_embeds=prompts, negative_prompt_embeds=nothing, eta=1e-6)
    plain = make(pipeline, replace(job, eta=0.0)).images
    speculative = make(pipeline, job, SpeculativeSamplingConfig(2)).images
    torch.testing.assert_close(speculative, plain, atol=1e-3, rtol=1e-2)
    other = make(pipeline, replace(job, eta=0.0, negative_prompt_embeds=-nothing)).images
    assert not torch.allclose(other, plain, atol=1e-4)


def test_schedulers_are_exchanged_with_their_noise_levels() -> None:
    pipeline = unet_pipeline()
    before = pipeline.scheduler.alphas_cumprod
    exchange_scheduler(pipeline, "ddpm")
    assert isinstance(pipeline.scheduler, DDPMScheduler)
    assert torch.equal(pipeline.scheduler.alphas_cumprod, before)
    assert not pipeline.scheduler.config.clip_sample
    with pytest.raises(UnknownNameError):
        exchange_scheduler(pipeline, "dpm")
    pipeline.scheduler = FlowMatchEulerDiscreteScheduler()
    with pytest.raises(UnsupportedModelError, match="no betas"):
        exchange_scheduler(pipeline, "ddpm")


def test_samples_that_are_no_numbers_are_refused() -> None:
    pipeline = unet_pipeline()
    with torch.no_grad():
        next(denoiser_of(pipeline).parameters()).fill_(float("nan"))
    for config in (None, SpeculativeSamplingConfig(2)):
        with pytest.raises(UnsupportedModelError, match="not finite"):
            make(pipeline, replace(JOB, eta=1.0), config)


def test_other_pipelines_run_their_own_stochastic_loop() -> None:
    pipeline = unguided_pipeline()
    made = make(pipeline, Job(range(2), 6))
    assert (made.exact, made.evaluations.calls) == (True, 6)


def test_a_transformer_with_other_classes_runs_without_guidance_only() -> None:
    pipeline = transformer_pipeline()
    denoiser_of(pipeline).register_to_config(num_embeds_ada_norm=10)
    with pytest.raises(UnsupportedModelError, match="10 classes"):
        make(pipeline, replace(JOB, eta=1.0), SpeculativeSamplingConfig(2))
