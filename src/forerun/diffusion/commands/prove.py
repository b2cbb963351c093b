"""`forerun diffusion prove`: speculative sampling held against closed forms and the plain sampler."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

from pydantic import Field

from forerun import diffusion
from forerun.diffusion.commands.requests import Sampler
from forerun.diffusion.settings import DraftSteps
from forerun.errors import ConfigError
from forerun.options import Text, changes, option, options
from forerun.report.result import Result, Sentence

DDIM_ETA = 0.5
"""Eta of DDIM on targets in closed form unless one is given."""


@options
class DiffusionProofRequest(Sampler):
    """Prove that speculative sampling keeps the law of the sampler.

    Targets: a Gaussian, of which every marginal is known in closed form, a mixture of Gaussians, or a
    network. Each step's innovations must be standard normal, and final samples like the plain sampler's.
    Exit code 1: a defect was found.
    """

    pipeline: Text = option(
        section="Pipeline",
        default="none",
        description="Network to prove it on: a directory that diffusers wrote, or images; none for targets "
        "in closed form.",
    )
    samples: int = option(
        default=512,
        ge=50,
        le=100_000,
        description="Samples of a test; more find smaller errors.",
        section="Effort",
    )
    num_draft_steps: DraftSteps = Field(default=8, description="Most steps drafted a round.")
    dimensions: int = Field(
        default=8, ge=1, le=256, description="Dimensions of the targets in closed form."
    )
    plant: Literal["keep_all", "redraw", "not_mirrored"] | None = Field(
        default=None, description="Prove a wrong coupling instead, to see that it is found."
    )

    def __post_init__(self) -> None:
        of_network = {"conditions", "labels", "guidance_scale", "scheduler"}
        given = [name for name in changes(self) if name in of_network]
        if self.pipeline == "none" and given:
            raise ConfigError(f"{given[0]} is of a network; name one as pipeline.")


def run(request: DiffusionProofRequest) -> Result:
    """Run speculative sampling on each target, and test it.

    Raises:
        ConfigError: for a sampler without noise, or a pipeline that makes clips.
    """
    import torch

    config = diffusion.SpeculativeSamplingConfig(
        request.num_draft_steps, coupling=diffusion.proof.COUPLINGS[request.plant]
    )
    targets = _closed_forms(request) if request.pipeline == "none" else _network(request)
    proofs = {
        name: diffusion.prove(target, config, samples=request.samples, seed=request.seed)
        for name, target in targets.items()
    }
    passed = all(proof.passed for proof in proofs.values())
    said = (
        "No defect was found; of 10,000 exact samplers a target refuses one at most."
        if passed
        else "A DEFECT was found: these samples do not have the law of the sampler."
    )
    parts = {name: _content(proof) for name, proof in proofs.items()}
    return Result(
        content={"mode": "diffusion prove", "passed": passed, "targets": parts},
        answers=[*(_in_words(name, proof) for name, proof in proofs.items()), said],
        exit_code=0 if passed else 1,
        device=torch.device("cpu"),
    )


def _closed_forms(request: DiffusionProofRequest) -> dict[str, diffusion.ProofTarget]:
    from diffusers import DDIMScheduler, DDPMScheduler

    from forerun.diffusion.closed_forms import gaussian, mixture

    steps, size = request.steps, request.dimensions
    ddpm, ddim = DDPMScheduler(clip_sample=False), DDIMScheduler(clip_sample=False)
    by_ddpm = diffusion.Transitions.of(ddpm, steps)
    by_ddim = diffusion.Transitions.of(ddim, steps, request.eta or DDIM_ETA)
    known = gaussian(size, ddpm)
    return {
        "Gaussian, DDPM": diffusion.ProofTarget(known, by_ddpm, (size,), known.law(by_ddpm)),
        "Gaussian, DDIM": diffusion.ProofTarget(known, by_ddim, (size,), known.law(by_ddim)),
        "mixture, DDPM": diffusion.ProofTarget(mixture(size, ddpm), by_ddpm, (size,)),
    }


def _network(request: DiffusionProofRequest) -> dict[str, diffusion.ProofTarget]:
    """A pipeline's network; its samples have the given conditions in turn."""
    pipeline = request.open()
    kind = diffusion.pipelines.kind_of(pipeline)
    if kind.video:
        raise ConfigError(f"{kind.name} makes clips; speculative sampling is of images.")
    job = request.job(pipeline, request.samples, request.steps, request.eta or 0.0, None)
    transitions = diffusion.Transitions.of(pipeline.scheduler, job.steps, job.eta)
    network = diffusion.GuidedDenoiser(pipeline, **job.conditions)
    return {request.pipeline: diffusion.ProofTarget(network, transitions, kind.noise_shape(1)[1:])}


def _content(proof: diffusion.SamplerProof) -> dict[str, object]:
    checks = [{**asdict(check), "passed": check.passed} for check in proof.checks]
    return {**asdict(proof), "passed": proof.passed, "checks": checks}


def _in_words(name: str, proof: diffusion.SamplerProof) -> Sentence:
    text = (
        f"{name}: {proof.samples} samples of {proof.steps} steps, {proof.fewer:.2f} times fewer "
        f"passes one after the other, {proof.acceptance:.0%} of drafted steps kept"
    )
    details = [
        f"{'passed' if check.passed else 'FAILED'}  p = {check.p_value:.2g}  {check.name} "
        f"({check.count:,} numbers; 99 of 100 times it finds {check.finds})"
        for check in proof.checks
    ]
    return Sentence(text, details)
