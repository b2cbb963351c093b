"""The caches that diffusers has for transformers, beside a CFG cache, in quality and in seconds.

``python -m benchmarks.diffusion_transformer --work DIR --out FILE`` trains a small transformer first, on the
latents of the shipped digits and in about 35 minutes of two cores; DIR keeps it, half trained too.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import diffusers
import torch
from diffusers import (
    CogVideoXPipeline,
    CogVideoXTransformer3DModel,
    FasterCacheConfig,
    FirstBlockCacheConfig,
    PyramidAttentionBroadcastConfig,
    TaylorSeerCacheConfig,
)
from torch import Generator, Tensor, nn

from benchmarks.diffusion_models import GUIDANCE_SCALE, set_threads, shipped
from forerun.diffusion.cfg_cache import apply_cfg_cache
from forerun.diffusion.hooks import count_evaluations
from forerun.diffusion.loading import open_pipeline
from forerun.diffusion.methods import psnr
from forerun.diffusion.pipelines import label_embeds
from forerun.diffusion.settings import CFGCacheConfig
from forerun.diffusion.training import AveragedTrainer, AveragedTraining
from forerun.files import write_text
from forerun.measure.turns import in_turns
from recipes.classifier import label_accuracy, load_classifier
from recipes.diffusion import encoded_set, image_drawer, image_loss
from recipes.diffusion_models import (
    EMBEDDING,
    LATENT_CHANNELS,
    LATENT_SIZE,
    TRAIN_TIMESTEPS,
    make_scheduler,
)

SETTINGS = AveragedTraining(steps=4000, learning_rate=1e-3, warmup_steps=200, seed=5)


class OneFrame(nn.Module):
    """A transformer of clips as a model of images: clips of a single frame."""

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, noisy: Tensor, steps: Tensor, encoder_hidden_states: Tensor) -> Any:
        output = self.transformer(noisy.unsqueeze(1), encoder_hidden_states, steps)
        output.sample = output.sample.squeeze(1)
        return output


def make_transformer() -> Any:
    """Of a class that every cache of diffusers knows: 64 positions and the label, 2.4 million parameters."""
    torch.manual_seed(5)
    return CogVideoXTransformer3DModel(
        num_attention_heads=4,
        attention_head_dim=32,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        time_embed_dim=64,
        text_embed_dim=EMBEDDING,
        max_text_seq_length=1,
        num_layers=8,
        sample_width=LATENT_SIZE,
        sample_height=LATENT_SIZE,
        sample_frames=1,
        patch_size=1,
        spatial_interpolation_scale=1.0,
    )


def trained(work: Path, vae: Any) -> Any:
    """The transformer, trained on drawn digits as the shipped UNet was; resumes from `work`."""
    latents, labels = encoded_set(work / "images.latents", vae, image_drawer())
    model = OneFrame(make_transformer())
    loss = partial(image_loss, latents, labels)
    AveragedTrainer(model, loss, SETTINGS, work / "transformer.pt", what="transformer").run()
    return model.transformer.requires_grad_(False)


def make_pipeline(transformer: nn.Module) -> Any:
    """It gives latents, `[B, 1, 4, 8, 8]`, and runs both halves of guidance in one batch."""
    pipeline = CogVideoXPipeline(
        tokenizer=None,
        text_encoder=None,
        vae=None,
        transformer=transformer,
        scheduler=make_scheduler(),
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def first_block(threshold: float) -> FirstBlockCacheConfig:
    return FirstBlockCacheConfig(threshold=threshold)


def taylor(interval: int, *, lite: bool = False) -> TaylorSeerCacheConfig:
    """Lite predicts what the last block leaves. Else each attention and each feed-forward layer is predicted:
    named here, for the names that the class looks for by itself fit none of this transformer's."""
    layers = None if lite else ["transformer_blocks.*attn1", "transformer_blocks.*ff"]
    return TaylorSeerCacheConfig(
        cache_interval=interval,
        taylor_factors_dtype=torch.float32,
        cache_identifiers=layers,
        use_lite_mode=lite,
    )


def faster(interval: int, pipeline: Any, *, always: bool = False) -> FasterCacheConfig:
    """The unconditional half at every n-th step, attention at every second; `always`: at all timesteps."""
    times: dict[str, Any] = {}
    if always:
        everything = (-1, TRAIN_TIMESTEPS + 1)
        times["unconditional_batch_timestep_skip_range"] = everything
        times["spatial_attention_timestep_skip_range"] = everything
    return FasterCacheConfig(
        unconditional_batch_skip_range=interval,
        tensor_format="BFCHW",
        current_timestep_callback=lambda: int(pipeline.current_timestep),
        **times,
    )


def pyramid(interval: int, pipeline: Any) -> PyramidAttentionBroadcastConfig:
    return PyramidAttentionBroadcastConfig(
        spatial_attention_block_skip_range=interval,
        current_timestep_callback=lambda: int(pipeline.current_timestep),
    )


def gated(bound: float) -> CFGCacheConfig:
    return CFGCacheConfig(drift_bound=bound, extrapolate=True)


def ways(pipeline: Any) -> dict[str, tuple[Any, CFGCacheConfig | None]]:
    """By name: a cache of diffusers, and a CFG cache; each of them may be left out."""
    ways: dict[str, tuple[Any, CFGCacheConfig | None]] = {}
    for threshold in (0.03, 0.05, 0.08, 0.12, 0.2):
        ways[f"FirstBlockCache {threshold}"] = first_block(threshold), None
    for interval in (2, 3, 4, 5):
        ways[f"TaylorSeer {interval}"] = taylor(interval), None
    for interval in (2, 3, 4, 5):
        ways[f"TaylorSeer lite {interval}"] = taylor(interval, lite=True), None
    for interval in (2, 5):
        ways[f"FasterCache {interval}"] = faster(interval, pipeline), None
        ways[f"FasterCache {interval}, always"] = faster(interval, pipeline, always=True), None
    ways["PyramidAttentionBroadcast 2"] = pyramid(2, pipeline), None
    for bound in (0.1, 0.2, 0.3, 0.4, 0.5):
        ways[f"CFG cache {bound}"] = None, gated(bound)
    for threshold in (0.05, 0.08):
        ways[f"FirstBlockCache {threshold}, CFG cache 0.2"] = first_block(threshold), gated(0.2)
    for interval in (2, 3):
        ways[f"TaylorSeer lite {interval}, CFG cache 0.2"] = (
            taylor(interval, lite=True),
            gated(0.2),
        )
    return ways


@contextmanager
def applied(pipeline: Any, blocks: Any, guidance: CFGCacheConfig | None) -> Iterator[None]:
    """A way around the pipeline, for a block."""
    with ExitStack() as stack:
        if guidance is not None:
            stack.enter_context(apply_cfg_cache(pipeline, guidance))
        if blocks is not None:
            pipeline.transformer.enable_cache(blocks)
            stack.callback(pipeline.transformer.disable_cache)
        yield


@dataclass(frozen=True)
class Sampling:
    """Digits from fixed noise, decoded by the shipped autoencoder."""

    vae: Any
    count: int
    steps: int

    @property
    def labels(self) -> list[int]:
        return [number % 10 for number in range(self.count)]

    @torch.no_grad()
    def run(self, pipeline: Any) -> Tensor:
        """Images in [0, 1]: `[B, 1, 32, 32]`."""
        embeds = label_embeds(self.labels, EMBEDDING)
        shape = (1, LATENT_CHANNELS, LATENT_SIZE, LATENT_SIZE)
        noise = [
            torch.randn(shape, generator=Generator().manual_seed(n)) for n in range(self.count)
        ]
        frames = pipeline(
            prompt_embeds=embeds,
            negative_prompt_embeds=torch.zeros_like(embeds),
            latents=torch.stack(noise),
            height=8 * LATENT_SIZE,
            width=8 * LATENT_SIZE,
            num_frames=1,
            num_inference_steps=self.steps,
            guidance_scale=GUIDANCE_SCALE,
            output_type="latent",
        ).frames
        images = self.vae.decode(frames[:, 0] / self.vae.config.scaling_factor).sample
        result: Tensor = (images / 2.0 + 0.5).clamp(0.0, 1.0)
        return result


def compare(pipeline: Any, sampling: Sampling, pairs: int, part: str) -> Iterator[dict[str, Any]]:
    """Each way beside the full sampler: operations, seconds in turns, PSNR, labels that are found.

    Args:
        part: of the names of the ways that are run.
    """
    classifier = load_classifier(shipped("classifier.safetensors"))
    with count_evaluations(pipeline, flops=True) as full:
        reference = sampling.run(pipeline)
    labels = label_accuracy(classifier, reference, sampling.labels)
    yield {"way": "full sampler", "labels": asdict(labels)}
    every = {name: (sampling, way) for name, way in ways(pipeline).items()}
    for steps in (sampling.steps // 2, sampling.steps // 4):
        every[f"{steps} steps"] = replace(sampling, steps=steps), (None, None)
    for name, (mine, way) in every.items():
        if part not in name:
            continue
        with applied(pipeline, *way), count_evaluations(pipeline, flops=True) as counted:
            images = mine.run(pipeline)
        by_way = applied(pipeline, *way)(partial(mine.run, pipeline))
        turns = in_turns(partial(sampling.run, pipeline), by_way, pairs)
        yield {
            "way": name,
            "operations": full.flops / counted.flops,
            "seconds": (turns.ratio, turns.least, turns.most),
            "psnr": asdict(psnr(images, reference)),
            "labels": asdict(label_accuracy(classifier, images, sampling.labels)),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="where the transformer is kept")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=3, help="timed runs of each, in turns")
    parser.add_argument("--ways", default="", help="those whose name has this in it")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    set_threads(options.threads)
    diffusers.utils.logging.set_verbosity_error()
    options.work.mkdir(parents=True, exist_ok=True)
    vae = open_pipeline(shipped("images")).vae
    pipeline = make_pipeline(trained(options.work, vae))
    rows = []
    sampling = Sampling(vae, options.count, options.steps)
    for row in compare(pipeline, sampling, options.pairs, options.ways):
        print(row, flush=True)
        rows.append(row)
    write_text(options.out, json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
