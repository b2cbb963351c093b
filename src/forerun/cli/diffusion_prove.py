"""`forerun diffusion prove`: speculative sampling held against closed forms and the plain sampler."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from pydantic import Field

from forerun.cli.bars import bars, waiting
from forerun.cli.config import config_option
from forerun.cli.derived import derived
from forerun.cli.diffusion_flags import (
    check_numbers,
    job_of,
    open_named,
    pipeline_options,
    sampling_options,
)
from forerun.cli.flags import json_option
from forerun.cli.options import Command, Option, flag_of, given
from forerun.cli.quiet import quiet_libraries
from forerun.cli.results import give
from forerun.errors import ConfigError
from forerun.options import options, pick
from forerun.report.result import Result, Sentence

if TYPE_CHECKING:
    from forerun.diffusion.proof import Proof, Subject

PLANTED = ("keep_all", "redraw", "not_mirrored")


@options
class Effort:
    """How much to run."""

    samples: int = Field(
        default=512, ge=50, le=100_000, description="Of each test; more find smaller errors."
    )
    num_draft_steps: int = Field(default=8, ge=1, le=1024, description="Drafted a round at most.")
    dimensions: int = Field(default=8, ge=1, le=256, description="Of the targets in closed form.")


def prove(**values: Any) -> int:
    """Prove that speculative sampling keeps the law of the sampler.

    Targets: a Gaussian, of which every marginal is known in closed form, a mixture of Gaussians, and with
    --pipeline a network. Each step's innovations must be standard normal, and final samples like the
    plain sampler's. Exit code 1: a defect was found.
    """
    effort = pick(Effort, values)
    check_numbers(values)
    quiet_libraries()
    with waiting("starting"):
        import torch

        from forerun.diffusion.proof import PLANTED as COUPLINGS
        from forerun.diffusion.proof import prove as run
        from forerun.diffusion.reflection import couple
        from forerun.diffusion.speculative_sampling import SpeculativeSamplingConfig

        subjects = _subjects(values, effort)
    coupling = COUPLINGS[values["plant"]] if values["plant"] else couple
    config = SpeculativeSamplingConfig(effort.num_draft_steps, coupling=coupling)
    proofs: dict[str, Proof] = {}
    with bars():
        for name, subject in subjects.items():
            proofs[name] = run(subject, config, samples=effort.samples, seed=values["seed"])
    return give(_result(proofs), values, torch.device("cpu"))


def _result(proofs: dict[str, Proof]) -> Result:
    passed = all(proof.passed for proof in proofs.values())
    parts = {
        name: {
            **asdict(proof),
            "passed": proof.passed,
            "checks": [{**asdict(check), "passed": check.passed} for check in proof.checks],
        }
        for name, proof in proofs.items()
    }
    said = (
        "No defect was found; of 10,000 exact samplers a target refuses one at most."
        if passed
        else "A DEFECT was found: these samples do not have the law of the sampler."
    )
    return Result(
        content={"mode": "diffusion prove", "passed": passed, "targets": parts},
        answers=[*(_in_words(name, proof) for name, proof in proofs.items()), said],
        exit_code=0 if passed else 1,
    )


def _subjects(values: dict[str, Any], effort: Effort) -> dict[str, Subject]:
    from diffusers import DDIMScheduler, DDPMScheduler

    from forerun.diffusion.closed_forms import gaussian, mixture
    from forerun.diffusion.proof import Subject
    from forerun.diffusion.transitions import Transitions

    steps, size = values["steps"], effort.dimensions
    if values["pipeline"] != "none":
        return {values["pipeline"]: _network(values, effort.samples)}
    context = click.get_current_context()
    for name in ("conditions", "labels", "guidance_scale", "scheduler"):
        if given(context, name):
            raise ConfigError(
                f"{flag_of(context, name)} is of a network; name one with --pipeline."
            )
    ddpm, ddim = DDPMScheduler(clip_sample=False), DDIMScheduler(clip_sample=False)
    by_ddpm = Transitions.of(ddpm, steps)
    by_ddim = Transitions.of(ddim, steps, values["eta"] or 0.5)
    known = gaussian(size, ddpm)
    return {
        "Gaussian, DDPM": Subject(known, by_ddpm, (size,), known.law(by_ddpm)),
        "Gaussian, DDIM": Subject(known, by_ddim, (size,), known.law(by_ddim)),
        "mixture, DDPM": Subject(mixture(size, ddpm), by_ddpm, (size,)),
    }


def _network(values: dict[str, Any], samples: int) -> Subject:
    """A pipeline's network; all its samples have the conditions of `--labels` in turn."""
    from forerun.diffusion.denoising import GuidedDenoiser
    from forerun.diffusion.pipelines import kind_of
    from forerun.diffusion.proof import Subject
    from forerun.diffusion.transitions import Transitions

    pipeline = open_named(values)
    if kind_of(pipeline).video:
        raise ConfigError(
            f"{type(pipeline).__name__} makes clips; speculative sampling is of images."
        )
    job = job_of(pipeline, {**values, "count": samples, "frames": None})
    transitions = Transitions.of(pipeline.scheduler, job.steps, job.eta)
    shape = kind_of(pipeline).noise_shape(1)[1:]
    return Subject(GuidedDenoiser(pipeline, **job.conditions), transitions, shape)


def _in_words(name: str, proof: Proof) -> Sentence:
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


_LEFT_OUT = ("count", "frames")

command = Command(
    "diffusion prove",
    params=[
        *derived(Effort, "Effort"),
        Option(
            "plant",
            "Effort",
            type=click.Choice(PLANTED),
            help="Prove a wrong coupling instead, to see that it is found.",
        ),
        *(option for option in pipeline_options() if option.name != "pipeline"),
        Option(
            "pipeline",
            "Pipeline",
            default="none",
            help="Prove it on a network: a directory that diffusers wrote, or images.",
        ),
        *(option for option in sampling_options() if option.name not in _LEFT_OUT),
        json_option(),
        config_option(),
    ],
    callback=prove,
    example="forerun diffusion prove --steps 50",
    assumed="targets in closed form",
)
