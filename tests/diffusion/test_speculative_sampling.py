"""Speculative sampling of diffusion: exact by proof, with planted mistakes found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler, EulerAncestralDiscreteScheduler
from scipy import stats
from torch import Tensor

from benchmarks.diffusion_checks import ProofTarget, SamplerProof, chance_kept, prove
from benchmarks.diffusion_targets import COUPLINGS, gaussian, mixture
from forerun.diffusion.pipelines import GuidedDenoiser, decode, draw_noise, kind_of, sample
from forerun.diffusion.settings import SpeculativeSamplingConfig
from forerun.diffusion.speculative_sampling import (
    Coupling,
    Draws,
    couple,
    sample_plainly,
    sample_speculatively,
)
from forerun.diffusion.transitions import Transitions
from forerun.errors import ConfigError, UnsupportedModelError
from tests.helpers.tiny_pipelines import (
    clip_pipeline,
    transformer_pipeline,
    unet_pipeline,
    unguided_pipeline,
)

STEPS = 30
DIMENSIONS = 6


def subject(target: str, scheduler: Any = None, eta: float = 0.0) -> ProofTarget:
    scheduler = scheduler or DDPMScheduler(clip_sample=False)
    transitions = Transitions.of(scheduler, STEPS, eta)
    if target == "mixture":
        return ProofTarget(mixture(DIMENSIONS, scheduler), transitions, (DIMENSIONS,))
    network = gaussian(DIMENSIONS, scheduler)
    return ProofTarget(network, transitions, (DIMENSIONS,), network.law(transitions))


def failed(proof: SamplerProof) -> list[str]:
    return [check.name for check in proof.checks if not check.passed]


@pytest.mark.parametrize("apart", [0.0, 0.3, 2.0])
def test_coupled_draws_have_the_law_of_the_target(apart: float) -> None:
    count, std = 40_000, 0.7
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    uniform = torch.rand(count, generator=generator, dtype=torch.float64)
    target = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64).expand(count, -1)
    draft = target + apart * std * torch.tensor([[0.6, 0.0, 0.8]], dtype=torch.float64)
    deviation = torch.full((count, 1), std, dtype=torch.float64)
    drawn, kept = couple(draft, target, deviation, noise, uniform)
    whitened = (drawn - target) / std
    assert (
        stats.kstest((whitened @ torch.tensor([0.6, 0.0, 0.8]).double()).numpy(), "norm")[1] > 1e-4
    )
    assert 1e-4 < stats.chi2.sf(float(whitened.square().sum()), whitened.numel()) < 1 - 1e-4
    chance = float(chance_kept(draft[:1], target[:1], deviation[:1]))
    assert chance == pytest.approx(2 * stats.norm.cdf(-apart / 2))
    assert stats.binomtest(int(kept.sum()), count, min(chance, 1.0)).pvalue > 1e-4
    assert torch.equal(drawn[kept], (draft + std * noise)[kept])


def test_without_noise_the_outcome_is_the_targets_mean() -> None:
    draft, target = torch.zeros(2, 3), torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    noise, uniform = torch.randn(2, 3), torch.rand(2)
    drawn, kept = couple(draft, target, torch.zeros(2, 1), noise, uniform)
    assert torch.equal(drawn, target)
    assert kept.tolist() == [True, False]


@pytest.mark.parametrize("target", ["gaussian", "mixture"])
@pytest.mark.parametrize("num_draft_steps", [1, 5])
def test_it_is_exact(target: str, num_draft_steps: int) -> None:
    config = SpeculativeSamplingConfig(num_draft_steps)
    proof = prove(subject(target), config, samples=200)
    assert failed(proof) == []
    assert proof.fewer > 1.5 or num_draft_steps == 1


@pytest.mark.parametrize(
    ("scheduler", "eta"),
    [
        (DDIMScheduler(clip_sample=False), 1.0),
        (DDIMScheduler(clip_sample=False, set_alpha_to_one=False), 0.3),
        (DDPMScheduler(clip_sample=False, variance_type="fixed_large"), 0.0),
    ],
)
def test_it_is_exact_with_other_samplers(scheduler: Any, eta: float) -> None:
    proof = prove(subject("gaussian", scheduler, eta), SpeculativeSamplingConfig(6), samples=200)
    assert failed(proof) == []


def test_it_is_exact_with_euler_ancestral_and_clipping() -> None:
    """No closed form: each step's innovations all the same."""
    for scheduler in (EulerAncestralDiscreteScheduler(), DDPMScheduler()):
        transitions = Transitions.of(scheduler, STEPS)
        network = mixture(DIMENSIONS, scheduler)
        proof = prove(
            ProofTarget(network, transitions, (DIMENSIONS,)),
            SpeculativeSamplingConfig(4),
            samples=150,
        )
        assert failed(proof) == []


@pytest.mark.parametrize("name", [name for name in COUPLINGS if name])
@pytest.mark.parametrize("target", ["gaussian", "mixture"])
def test_planted_couplings_are_found(name: str, target: str) -> None:
    proof = prove(
        subject(target), SpeculativeSamplingConfig(6, coupling=COUPLINGS[name]), samples=600
    )
    assert not proof.passed


def test_uniforms_that_depend_on_the_noise_are_found() -> None:
    """Uniform numbers that depend on the noise: the law is another, and the proof says so."""

    def biased(*arguments: Tensor) -> tuple[Tensor, Tensor]:
        draft, target, std, noise, _ = arguments
        along = (noise * torch.nn.functional.normalize(draft - target)).sum(1)
        return couple(draft, target, std, noise, torch.special.ndtr(along))

    coupling: Coupling = biased
    assert not prove(subject("gaussian"), SpeculativeSamplingConfig(6, coupling=coupling)).passed


def test_a_student_drafts() -> None:
    what = subject("gaussian")
    student = gaussian(DIMENSIONS, DDPMScheduler())
    student.mean = student.mean + 0.3
    proof = prove(what, SpeculativeSamplingConfig(5, student=student), samples=200)
    assert failed(proof) == []
    assert 1.5 < proof.fewer < 5
    perfect = prove(what, SpeculativeSamplingConfig(5, student=what.network), samples=60)
    assert (
        perfect.acceptance > 0.95
    )  # All but the last step, which adds no noise and must be equal.


def test_a_sample_depends_on_its_own_seed_alone() -> None:
    what, config = subject("mixture"), SpeculativeSamplingConfig(5)
    draws = Draws.of(range(6), STEPS, (DIMENSIONS,))
    together, _ = sample_speculatively(what.network, what.transitions, draws, config)
    for row in range(6):
        own = Draws.of([row], STEPS, (DIMENSIONS,))
        alone, passes = sample_speculatively(what.network, what.transitions, own, config)
        torch.testing.assert_close(alone[0], together[row])
        assert passes.sequential < STEPS
        assert passes.evaluations >= STEPS
        assert sum(passes.kept) < STEPS
        assert sum(passes.drafted) == passes.evaluations - 1  # All but the first, which is plain.


def test_one_step_at_a_time_takes_a_pass_each() -> None:
    what = subject("gaussian")
    draws, config = Draws.of(range(3), STEPS, (DIMENSIONS,)), SpeculativeSamplingConfig(1)
    _, passes = sample_speculatively(what.network, what.transitions, draws, config)
    assert (passes.sequential, passes.evaluations) == (STEPS, 3 * STEPS)
    with pytest.raises(ConfigError, match="30 steps"):
        sample_plainly(what.network, Transitions.of(DDPMScheduler(), 29), draws)


@pytest.mark.parametrize("size", [4, 12, 64])
def test_starts_and_steps_draw_independently(size: int) -> None:
    """Their values and squares, at the same place of a sample, over many seeds."""
    draws = Draws.of(range(3000), 2, (size,))
    first, second, start = draws.noise[:, 0], draws.noise[:, 1], draws.start.double()
    for one, other in ((start, first), (first, second), (start, second)):
        for power in (1, 2):
            pair = torch.stack([(one**power).flatten(), (other**power).flatten()])
            assert abs(float(torch.corrcoef(pair)[0, 1])) < 5 / (3000 * size) ** 0.5
    lowest = torch.stack([start[:, 0].abs(), first.abs().amin(1)])
    assert abs(float(torch.corrcoef(lowest)[0, 1])) < 5 / 3000**0.5
    uniform = draws.uniform.flatten().numpy()
    assert stats.kstest(uniform, "uniform").pvalue > 1e-4


def test_the_start_is_the_pipelines_noise() -> None:
    pipeline = unet_pipeline()
    noise = draw_noise(kind_of(pipeline), [3, 8])
    assert torch.equal(Draws.of([3, 8], 2, noise.shape[1:]).start, noise)


def test_drafts_that_are_no_numbers_change_nothing() -> None:
    def broken(samples: Tensor, timesteps: Tensor, rows: Tensor) -> Tensor:
        return torch.full_like(samples, float("nan"))

    what = subject("gaussian")
    proof = prove(what, SpeculativeSamplingConfig(3, student=broken), samples=200)
    assert failed(proof) == []
    assert proof.acceptance == 0.0
    bad = ProofTarget(broken, what.transitions, what.shape)
    with pytest.raises(UnsupportedModelError, match="not finite"):
        prove(bad, SpeculativeSamplingConfig(3), samples=50)


def _plainly(*arguments: Tensor) -> tuple[Tensor, Tensor]:
    """The right law, but never the draft's own step."""
    _, target, std, noise, uniform = arguments
    return target + std * noise, torch.zeros_like(uniform, dtype=torch.bool)


def _too_wide(*arguments: Tensor) -> tuple[Tensor, Tensor]:
    draft, target, std, noise, uniform = arguments
    return couple(draft, target, std, 1.25 * noise, uniform)


def _one_sided(*arguments: Tensor) -> tuple[Tensor, Tensor]:
    """Wrong in one coordinate of all."""
    drawn, kept = couple(*arguments)
    drawn[:, 0] += 1.5 * arguments[2][:, 0]
    return drawn, kept


@pytest.mark.parametrize(
    ("coupling", "check"),
    [
        (_plainly, "as many steps"),
        (_too_wide, "the length"),
        (_one_sided, "mean of its closed form"),
        (_one_sided, "those of the plain sampler"),
        (_too_wide, "variance of its closed form"),
        (COUPLINGS["not_mirrored"], "along the draft"),
    ],
)
def test_each_check_finds_what_it_is_for(coupling: Coupling, check: str) -> None:
    proof = prove(subject("gaussian"), SpeculativeSamplingConfig(6, coupling=coupling), samples=600)
    assert any(check in name for name in failed(proof))


def test_steps_with_hardly_any_noise_are_left_out() -> None:
    scheduler = DDPMScheduler(clip_sample=False, timestep_spacing="trailing")
    what = subject("gaussian", scheduler)
    assert float(what.transitions.std[-1]) < 1e-9
    proof = prove(what, SpeculativeSamplingConfig(4), samples=200)
    assert failed(proof) == []
    assert proof.untested_steps == 1
    with pytest.raises(ConfigError, match="no noise"):
        prove(
            ProofTarget(what.network, Transitions.of(DDPMScheduler(), 1), what.shape),
            SpeculativeSamplingConfig(4),
            samples=50,
        )


@pytest.mark.parametrize(
    ("make", "labels", "scale"),
    [
        (unet_pipeline, [1, 4], 3.0),
        (unet_pipeline, [1, 4], 1.0),
        (transformer_pipeline, [1, 4], 2.5),
    ],
)
def test_the_denoiser_is_the_pipelines_own(make: Any, labels: list[int], scale: float) -> None:
    """Steps without noise through our loop are the pipeline's own samples."""
    pipeline = make()
    noise = draw_noise(kind_of(pipeline), [0, 1])
    expected = sample(pipeline, noise, steps=4, labels=labels, guidance_scale=scale)
    network = GuidedDenoiser(pipeline, labels=labels, guidance_scale=scale)
    latents, rows = noise, torch.arange(2)
    pipeline.scheduler.set_timesteps(4)
    for timestep in pipeline.scheduler.timesteps:
        with torch.no_grad():
            predicted = network(latents, timestep.expand(2), rows)
        latents = pipeline.scheduler.step(predicted, timestep, latents).prev_sample
    torch.testing.assert_close(decode(pipeline, latents), expected, atol=2e-5, rtol=1e-4)


def test_pipelines_run_through_it() -> None:
    for pipeline, labels in (
        (unet_pipeline(), [0, 3]),
        (transformer_pipeline(), [0, 3]),
        (unguided_pipeline(), None),
    ):
        network = GuidedDenoiser(pipeline, labels=labels, guidance_scale=2.0)
        scheduler = DDPMScheduler.from_config(
            pipeline.scheduler.config, variance_type="fixed_small", clip_sample=False
        )
        transitions = Transitions.of(scheduler, 8)
        shape = kind_of(pipeline).noise_shape(1)[1:]
        proof = prove(
            ProofTarget(_rows_of(network), transitions, shape),
            SpeculativeSamplingConfig(4),
            samples=50,
        )
        assert failed(proof) == []


def _rows_of(network: GuidedDenoiser) -> Any:
    """The same two conditions for all rows."""

    def run(samples: Tensor, timesteps: Tensor, rows: Tensor) -> Tensor:
        return network(samples, timesteps, rows % 2)

    return run


def test_wrong_use() -> None:
    with pytest.raises(ConfigError, match="num_draft_steps is 0"):
        SpeculativeSamplingConfig(0)
    with pytest.raises(ConfigError, match="at least 50"):
        prove(subject("gaussian"), SpeculativeSamplingConfig(), samples=10)
    with pytest.raises(UnsupportedModelError, match="AnimateDiff"):
        GuidedDenoiser(clip_pipeline(), labels=[1])
    with pytest.raises(ConfigError, match="neither labels"):
        GuidedDenoiser(unguided_pipeline(), labels=[1])
    with pytest.raises(ConfigError, match="label 1000"):
        GuidedDenoiser(transformer_pipeline(), labels=[1000])
    with pytest.raises(ConfigError, match="either labels"):
        GuidedDenoiser(unet_pipeline())
