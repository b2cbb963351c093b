"""Tiny diffusers pipelines with random weights: a UNet, a transformer, guidance in two calls, clips."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AnimateDiffPipeline,
    AutoencoderKL,
    AutoencoderKLWan,
    CogVideoXPipeline,
    CogVideoXTransformer3DModel,
    DDIMScheduler,
    DDPMPipeline,
    DDPMScheduler,
    DiTPipeline,
    DiTTransformer2DModel,
    FlowMatchEulerDiscreteScheduler,
    MotionAdapter,
    StableDiffusionPipeline,
    UNet2DConditionModel,
    UNet2DModel,
    UNetMotionModel,
    WanPipeline,
    WanTransformer3DModel,
)

WIDTH = 8
"""Of a prompt embedding."""


def scheduler(prediction_type: str = "v_prediction", timesteps: int = 64) -> Any:
    return DDIMScheduler(
        num_train_timesteps=timesteps,
        beta_schedule="squaredcos_cap_v2",
        prediction_type=prediction_type,
        timestep_spacing="trailing",
        clip_sample=False,
        set_alpha_to_one=True,
        steps_offset=1,
    )


def vae() -> Any:
    torch.manual_seed(0)
    return AutoencoderKL(
        in_channels=1,
        out_channels=1,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=4,
        sample_size=16,
    ).eval()


def unet(seed: int = 1, **changed: Any) -> Any:
    torch.manual_seed(seed)
    settings = {
        "sample_size": 8,
        "in_channels": 4,
        "out_channels": 4,
        "block_out_channels": (8, 16),
        "layers_per_block": 1,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "cross_attention_dim": WIDTH,
        "attention_head_dim": 2,
        "norm_num_groups": 4,
    }
    return UNet2DConditionModel(**{**settings, **changed}).eval()


def unet_pipeline(prediction_type: str = "v_prediction", **changed: Any) -> Any:
    pipeline = StableDiffusionPipeline(
        vae=vae(),
        text_encoder=None,
        tokenizer=None,
        unet=unet(**changed),
        scheduler=scheduler(prediction_type),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def transformer_pipeline() -> Any:
    torch.manual_seed(2)
    transformer = DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=1000,
        norm_num_groups=4,
    ).eval()
    for parameter in transformer.parameters():  # The last layer starts as zeros.
        torch.nn.init.normal_(parameter, std=0.2) if parameter.ndim > 1 else None
    pipeline = DiTPipeline(transformer=transformer, vae=vae(), scheduler=scheduler("epsilon"))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def unguided_pipeline() -> Any:
    torch.manual_seed(3)
    model = UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
    ).eval()
    pipeline = DDPMPipeline(unet=model, scheduler=DDPMScheduler(num_train_timesteps=64))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def clip_pipeline() -> Any:
    torch.manual_seed(4)
    adapter = MotionAdapter(
        block_out_channels=(8, 16),
        motion_layers_per_block=1,
        motion_mid_block_layers_per_block=1,
        motion_num_attention_heads=2,
        motion_norm_num_groups=4,
        motion_max_seq_length=8,
    )
    pipeline = AnimateDiffPipeline(
        vae=vae(),
        text_encoder=None,
        tokenizer=None,
        unet=UNetMotionModel.from_unet2d(unet(), adapter).eval(),
        motion_adapter=None,
        scheduler=scheduler(),
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def wan_pipeline() -> Any:
    """A pipeline of diffusers itself that calls its transformer twice a step."""
    torch.manual_seed(5)
    decoder = AutoencoderKLWan(
        base_dim=3,
        z_dim=4,
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
    )
    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=WIDTH,
        freq_dim=16,
        ffn_dim=32,
        num_layers=3,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    )
    pipeline = WanPipeline(
        tokenizer=None,
        text_encoder=None,
        vae=decoder.eval(),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        transformer=transformer.eval(),
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def cog_pipeline() -> Any:
    """A pipeline of diffusers with a transformer that its caches know, and both halves in one batch."""
    torch.manual_seed(6)
    transformer = CogVideoXTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=4,
        out_channels=4,
        time_embed_dim=8,
        text_embed_dim=WIDTH,
        max_text_seq_length=1,
        num_layers=3,
        sample_width=8,
        sample_height=8,
        sample_frames=1,
        patch_size=2,
    )
    pipeline = CogVideoXPipeline(
        tokenizer=None,
        text_encoder=None,
        vae=None,
        transformer=transformer.eval(),
        scheduler=DDIMScheduler(clip_sample=False),
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


class TwoCallPipeline(StableDiffusionPipeline):  # type: ignore[misc]
    """Runs its guidance in two calls of the denoiser, in the order of `unconditional_first`."""

    unconditional_first = False

    def __call__(
        self,
        prompt_embeds: Any = None,
        negative_prompt_embeds: Any = None,
        num_inference_steps: int = 8,
        guidance_scale: float = 3.0,
        latents: Any = None,
        generator: Any = None,
        output_type: str = "latent",
    ) -> tuple[torch.Tensor]:
        assert output_type == "latent"
        self.scheduler.set_timesteps(num_inference_steps)
        for timestep in self.scheduler.timesteps:
            predictions = {}
            order = (
                ["negative", "positive"] if self.unconditional_first else ["positive", "negative"]
            )
            for half in order if guidance_scale > 1.0 else ["positive"]:
                embeds = prompt_embeds if half == "positive" else negative_prompt_embeds
                predictions[half] = self.unet(
                    latents, timestep, encoder_hidden_states=embeds
                ).sample
            guided = predictions["positive"]
            if guidance_scale > 1.0:
                difference = predictions["positive"] - predictions["negative"]
                guided = predictions["negative"] + guidance_scale * difference
            latents = self.scheduler.step(guided, timestep, latents).prev_sample
        return (latents,)


def two_call_pipeline(unconditional_first: bool = False) -> Any:
    pipeline = TwoCallPipeline(**unet_pipeline().components, requires_safety_checker=False)
    pipeline.unconditional_first = unconditional_first
    return pipeline
