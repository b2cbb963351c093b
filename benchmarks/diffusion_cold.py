"""How a CFG cache that runs every other unconditional call comes to "3.3 times": the first run is cold.

``python -m benchmarks.diffusion_cold``, each time in a fresh process: a toy UNet with random weights,
`--steps` without the cache first, as a demonstration would, then with it; then both again, warm, in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.diffusion_models import set_threads

ROUNDS = 15
Predict = Callable[[Tensor, int, Tensor], Tensor]


def toy_unet() -> Predict:
    """A small UNet of diffusers, as one call."""
    from diffusers import UNet2DConditionModel

    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=4,
        norm_num_groups=8,
    ).eval()

    def predict(latents: Tensor, timestep: int, embeds: Tensor) -> Tensor:
        noise: Tensor = unet(latents, timestep, encoder_hidden_states=embeds).sample
        return noise

    return predict


@torch.no_grad()
def sampling_seconds(predict: Predict, steps: int, every: int) -> float:
    """Of so many guided steps whose unconditional call runs at every `every`-th."""
    latents, embeds = torch.zeros(1, 4, 16, 16), torch.ones(1, 1, 16)
    started = time.perf_counter()
    unconditional = torch.zeros_like(latents)
    for step in range(steps):
        conditional = predict(latents, 999 - step, embeds)
        if step % every == 0:
            unconditional = predict(latents, 999 - step, torch.zeros_like(embeds))
        latents = latents - 0.1 * (unconditional + 3.0 * (conditional - unconditional))
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    steps = parser.parse_args().steps
    set_threads(1)
    predict = toy_unet()

    def both() -> tuple[float, float]:
        return sampling_seconds(predict, steps, 1), sampling_seconds(predict, steps, 2)

    cold, after = both()
    pairs = [both() for _ in range(ROUNDS)]
    times = {
        "steps": steps,
        "plain_first": cold,
        "cached_second": after,
        "apparent": cold / after,
        "plain_warm": statistics.median(plain for plain, _ in pairs),
        "cached_warm": statistics.median(cached for _, cached in pairs),
        "paired": statistics.median(plain / cached for plain, cached in pairs),
        "by_evaluations": 2 * steps / (steps + (steps + 1) // 2),
    }
    print(json.dumps(times))


if __name__ == "__main__":
    main()
