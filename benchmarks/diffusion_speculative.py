"""Speculative sampling on the shipped digits: passes one after the other, by steps and draft length.

``python -m benchmarks.diffusion_speculative``

Single samples, ten labels with a seed each, guidance 3. Seconds are those of ``forerun diffusion bench``.
"""

from __future__ import annotations

import argparse
import statistics

import torch

from benchmarks.diffusion_models import GUIDANCE_SCALE, shipped
from forerun.diffusion.loading import open_pipeline
from forerun.diffusion.methods import Job, make
from forerun.diffusion.settings import SpeculativeSamplingConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--lengths", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--eta", type=float, default=1.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    pipeline = open_pipeline(shipped("images"))
    for steps in options.steps:
        for length in options.lengths:
            config = SpeculativeSamplingConfig(length)
            fewer, more, kept = [], [], []
            for label in range(10):
                job = Job([label], steps, [label], None, None, GUIDANCE_SCALE, options.eta)
                made = make(pipeline, job, config)
                fewer.append(steps / made.evaluations.calls)
                more.append(made.evaluations.samples / (2 * steps))
                kept.append(made.facts["acceptance"])
            print(
                f"{steps} steps, {length} a round: {statistics.mean(fewer):.2f} times "
                f"fewer passes ({min(fewer):.2f}-{max(fewer):.2f}), {statistics.mean(more):.2f} times "
                f"the evaluations, {statistics.mean(kept):.0%} of drafted steps kept",
                flush=True,
            )


if __name__ == "__main__":
    main()
