"""The shapes of the small diffusion models, and how their pipelines are put together."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AnimateDiffPipeline,
    AutoencoderKL,
    DDIMScheduler,
    MotionAdapter,
    StableDiffusionPipeline,
    UNet2DConditionModel,
    UNetMotionModel,
)
from torch import Tensor, nn

from forerun.diffusion.loading import save_pipeline
from forerun.diffusion.pipelines import label_embeds
from recipes.digits import NUM_CLASSES, NUM_FRAMES, SIZE

EMBEDDING = 16
"""Width of a prompt embedding: a one-hot label, padded; zeros stand for no label."""
TRAIN_TIMESTEPS = 1024
"""A power of two, so that every halving of the steps ends on the steps that were trained."""
LATENT_SIZE = 8
LATENT_CHANNELS = 4


def make_vae() -> Any:
    """32x32 pixels to latents of 4x8x8."""
    torch.manual_seed(0)
    return AutoencoderKL(
        in_channels=1,
        out_channels=1,
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(8, 16, 24),
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=8,
        sample_size=SIZE,
    )


def make_scheduler() -> Any:
    """DDIM on the cosine schedule; the first step starts from pure noise."""
    return DDIMScheduler(
        num_train_timesteps=TRAIN_TIMESTEPS,
        beta_schedule="squaredcos_cap_v2",
        prediction_type="v_prediction",
        timestep_spacing="trailing",
        clip_sample=False,
        set_alpha_to_one=True,
        steps_offset=1,
    )


def make_image_unet() -> Any:
    torch.manual_seed(1)
    return UNet2DConditionModel(
        sample_size=LATENT_SIZE,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=EMBEDDING,
        attention_head_dim=4,
        norm_num_groups=8,
        use_linear_projection=True,
    )


def make_clip_unet(image_unet: nn.Module) -> Any:
    """The image model with layers over time between its own; it starts as the image model."""
    torch.manual_seed(2)
    adapter = MotionAdapter(
        block_out_channels=(32, 64),
        motion_layers_per_block=1,
        motion_mid_block_layers_per_block=1,
        motion_num_attention_heads=4,
        motion_norm_num_groups=8,
        motion_max_seq_length=NUM_FRAMES,
    )
    return UNetMotionModel.from_unet2d(image_unet, adapter)


def embed_labels(labels: Tensor) -> Tensor:
    """Prompt embeddings `[B, 1, 16]` of labels `[B]`; a label of -1 is no label."""
    return label_embeds(labels.tolist(), EMBEDDING)


def drop_labels(labels: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """The same labels, with about `share` of them replaced by -1, so that guidance has its other half."""
    dropped = torch.rand(labels.shape, generator=generator) < share
    return torch.where(dropped, torch.full_like(labels, -1), labels)


def image_pipeline(vae: nn.Module, unet: nn.Module) -> Any:
    return StableDiffusionPipeline(
        vae=vae,
        text_encoder=None,
        tokenizer=None,
        unet=unet,
        scheduler=make_scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def clip_pipeline(vae: nn.Module, unet: nn.Module) -> Any:
    return AnimateDiffPipeline(
        vae=vae,
        text_encoder=None,
        tokenizer=None,
        unet=unet,
        motion_adapter=None,
        scheduler=make_scheduler(),
    )


def publish_pipeline(pipeline: Any, folder: Path) -> None:
    """Write a pipeline in half precision, in place of the one that is there.

    What is sampled and measured afterwards is read back from there, rounded weights and all.
    """
    halved = copy.deepcopy(pipeline).to(torch.float16)
    fresh = folder.with_name(f".{folder.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    save_pipeline(halved, fresh)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)


assert NUM_CLASSES <= EMBEDDING
