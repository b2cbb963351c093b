"""Proof that speculative sampling keeps the law of the sampler, on targets in closed form or on a network.

``python -m benchmarks.diffusion_proof`` or ``--pipeline images --eta 1``; exit code 1: a defect was found

Innovations of each step must be standard normal, final samples like the plain sampler's. ``--plant redraw``
proves a wrong coupling instead, to see that it is found.
"""

from __future__ import annotations

import argparse
import sys

from diffusers import DDIMScheduler, DDPMScheduler

from benchmarks.diffusion_checks import ProofTarget, SamplerProof, prove
from benchmarks.diffusion_targets import COUPLINGS, gaussian, mixture
from forerun.diffusion.loading import open_pipeline, resolve
from forerun.diffusion.pipelines import GuidedDenoiser, kind_of
from forerun.diffusion.settings import SpeculativeSamplingConfig
from forerun.diffusion.transitions import Transitions

DDIM_ETA = 0.5
"""Eta of DDIM on targets in closed form unless one is given."""


def closed_forms(steps: int, eta: float, size: int) -> dict[str, ProofTarget]:
    """A Gaussian by DDPM and by DDIM, and a mixture by DDPM."""
    ddpm, ddim = DDPMScheduler(clip_sample=False), DDIMScheduler(clip_sample=False)
    by_ddpm = Transitions.of(ddpm, steps)
    by_ddim = Transitions.of(ddim, steps, eta or DDIM_ETA)
    known = gaussian(size, ddpm)
    return {
        "Gaussian, DDPM": ProofTarget(known, by_ddpm, (size,), known.law(by_ddpm)),
        "Gaussian, DDIM": ProofTarget(known, by_ddim, (size,), known.law(by_ddim)),
        "mixture, DDPM": ProofTarget(mixture(size, ddpm), by_ddpm, (size,)),
    }


def network(
    name: str, steps: int, eta: float, samples: int, scale: float
) -> dict[str, ProofTarget]:
    """A pipeline's network, whose samples have ten labels in turn."""
    pipeline = open_pipeline(resolve(name))
    kind = kind_of(pipeline)
    labels = None if kind.conditioning == "none" else [index % 10 for index in range(samples)]
    guided = GuidedDenoiser(pipeline, labels=labels, guidance_scale=scale)
    transitions = Transitions.of(pipeline.scheduler, steps, eta)
    return {name: ProofTarget(guided, transitions, kind.noise_shape(1)[1:])}


def in_words(name: str, proof: SamplerProof) -> str:
    """Checks of a proof, one a line."""
    lines = [
        f"{name}: {proof.samples} samples of {proof.steps} steps, {proof.fewer:.2f} times fewer "
        f"passes one after the other, {proof.acceptance:.0%} of drafted steps kept"
    ]
    lines += [
        f"  {'passed' if check.passed else 'FAILED'}  p = {check.p_value:.2g}  {check.name} "
        f"({check.count:,} numbers; 99 of 100 times it finds {check.finds})"
        for check in proof.checks
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", help="network to prove it on; closed forms unless given")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--eta", type=float, default=0.0)
    parser.add_argument("--guidance-scale", type=float, default=3.0)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--dimensions", type=int, default=8, help="of the targets in closed form")
    parser.add_argument("--num-draft-steps", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plant", choices=[name for name in COUPLINGS if name])
    own = parser.parse_args()
    config = SpeculativeSamplingConfig(own.num_draft_steps, coupling=COUPLINGS[own.plant])
    if own.pipeline is None:
        targets = closed_forms(own.steps, own.eta, own.dimensions)
    else:
        targets = network(own.pipeline, own.steps, own.eta, own.samples, own.guidance_scale)
    passed = True
    for name, target in targets.items():
        proof = prove(target, config, samples=own.samples, seed=own.seed)
        print(in_words(name, proof), flush=True)
        passed = passed and proof.passed
    print("No defect was found." if passed else "A DEFECT was found.")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
