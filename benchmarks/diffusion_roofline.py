"""The networks of diffusion models on a roofline over batch sizes: a UNet and a transformer.

``python -m benchmarks.diffusion_roofline``

The UNet is the shipped one; the transformer is a DiT-S/2 (arXiv 2212.09748), with random weights: what a
run takes does not depend on them.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from diffusers import AutoencoderKL, DDIMScheduler, DiTPipeline, DiTTransformer2DModel

from benchmarks.diffusion_models import set_threads, shipped
from forerun.diffusion.loading import open_pipeline
from forerun.diffusion.methods import machine_limits, runs_by_batch


def small_transformer() -> Any:
    """DiT-S/2 on latents of 4x32x32: 256 tokens."""
    torch.manual_seed(0)
    transformer = DiTTransformer2DModel(
        num_attention_heads=6,
        attention_head_dim=64,
        in_channels=4,
        out_channels=8,
        num_layers=12,
        sample_size=32,
        patch_size=2,
        num_embeds_ada_norm=1000,
    ).eval()
    return DiTPipeline(transformer=transformer, vae=AutoencoderKL(), scheduler=DDIMScheduler())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    set_threads(options.threads)
    bandwidth, peak = machine_limits()
    print(f"memory {bandwidth / 1e9:.1f} GB/s, fp32 {peak / 1e9:.0f} GFLOP/s: they meet at")
    print(f"{peak / bandwidth:.1f} FLOP a byte")
    networks = {"UNet, digits": open_pipeline(shipped("images")), "DiT-S/2": small_transformer()}
    for name, pipeline in networks.items():
        for run in runs_by_batch(pipeline, options.batches):
            seconds = run["seconds"]
            print(
                f"{name}, batch {run['batch']}: {1e3 * seconds:.1f} ms, {run['intensity']:.1f} FLOP a byte, "
                f"{run['flops'] / seconds / 1e9:.0f} GFLOP/s, {run['bytes'] / seconds / 1e9:.1f} GB/s of "
                "weights",
                flush=True,
            )


if __name__ == "__main__":
    main()
