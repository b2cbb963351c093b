"""A pipeline's denoiser with its guidance, for samples that are at different steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from forerun.diffusion.pipelines import denoiser_of, kind_of, label_embeds
from forerun.errors import ConfigError, UnsupportedModelError

# The index for no label in DiTPipeline.
_NO_LABEL = 1000


class GuidedDenoiser:
    """A pipeline's denoiser as a `Network`, with both halves of guidance in one call.

    Args:
        pipeline: StableDiffusionPipeline with prompt embeddings, DiTPipeline or DDPMPipeline.
        labels: one label per row; for a pipeline with prompt embeddings they become one-hot rows.
        prompt_embeds: prompt embeddings `[B, tokens, width]`, in place of labels.
        negative_prompt_embeds: negative prompt embeddings for guidance; zeros if not given.
        guidance_scale: guidance scale; 1 or less is no guidance.

    Raises:
        UnsupportedModelError: for another pipeline.
        ConfigError: for conditions that the pipeline does not take, and for missing ones.
    """

    def __init__(
        self,
        pipeline: Any,
        *,
        labels: Sequence[int] | None = None,
        prompt_embeds: Tensor | None = None,
        negative_prompt_embeds: Tensor | None = None,
        guidance_scale: float = 1.0,
    ) -> None:
        kind = kind_of(pipeline)
        if kind.name not in ("StableDiffusionPipeline", "DiTPipeline", "DDPMPipeline"):
            raise UnsupportedModelError(
                f"how {kind.name} calls its {kind.denoiser} is not known to speculative sampling."
            )
        self.denoiser, self.kind = denoiser_of(pipeline), kind
        self.scale = guidance_scale
        self.guided = guidance_scale > 1.0 and kind.conditioning != "none"
        self._conditions: Tensor | None = None
        self._nothing: Tensor | None = None
        if kind.conditioning == "none":
            if labels is not None or prompt_embeds is not None:
                raise ConfigError(f"{kind.name} takes neither labels nor prompts.")
        elif kind.conditioning == "class":
            self._take_labels(labels, prompt_embeds)
        else:
            self._take_prompts(labels, prompt_embeds, negative_prompt_embeds)

    def _take_labels(self, labels: Sequence[int] | None, embeds: Tensor | None) -> None:
        if labels is None or embeds is not None:
            raise ConfigError(f"{self.kind.name} takes labels, one a sample, and no embeddings.")
        # The index after the last label stands for no label.
        classes = self.denoiser.config.num_embeds_ada_norm
        if self.guided and classes != _NO_LABEL:
            raise UnsupportedModelError(
                f"DiTPipeline takes index {_NO_LABEL} for no label; this transformer has {classes} classes, "
                "so it runs without guidance only (guidance_scale 1)."
            )
        wrong = [label for label in labels if not 0 <= label < classes]
        if wrong:
            raise ConfigError(f"label {wrong[0]} does not fit; use 0 to {classes - 1}.")
        self._conditions = torch.tensor(labels)
        self._nothing = torch.full_like(self._conditions, classes)

    def _take_prompts(
        self, labels: Sequence[int] | None, embeds: Tensor | None, negative: Tensor | None
    ) -> None:
        if (labels is None) == (embeds is None):
            raise ConfigError(f"give {self.kind.name} either labels or prompt embeddings.")
        if labels is not None:
            embeds = label_embeds(labels, self.denoiser.config.cross_attention_dim)
        assert embeds is not None
        width = self.denoiser.config.cross_attention_dim
        if embeds.ndim != 3 or embeds.shape[-1] != width or not len(embeds):
            raise ConfigError(
                f"prompt_embeds are [B, tokens, {width}] for this pipeline, not {list(embeds.shape)}."
            )
        if negative is not None and negative.shape != embeds.shape:
            raise ConfigError(
                f"negative_prompt_embeds are {list(negative.shape)}, prompt_embeds {list(embeds.shape)}; "
                "they must be alike."
            )
        self._conditions = embeds
        self._nothing = torch.zeros_like(embeds) if negative is None else negative

    def __call__(self, samples: Tensor, timesteps: Tensor, rows: Tensor) -> Tensor:
        """Guided predictions `[N, C, H, W]`; see `Network`."""
        if self._conditions is None:
            return self._run(samples, timesteps, None)
        mine = self._conditions[rows]
        if not self.guided:
            return self._run(samples, timesteps, mine)
        assert self._nothing is not None
        both = torch.cat((self._nothing[rows], mine))
        predicted = self._run(
            torch.cat((samples, samples)), torch.cat((timesteps, timesteps)), both
        )
        without, conditional = predicted.chunk(2)
        return without + self.scale * (conditional - without)

    def _run(self, samples: Tensor, timesteps: Tensor, conditions: Tensor | None) -> Tensor:
        samples = samples.to(self.denoiser.dtype)
        if self.kind.conditioning == "prompt":
            output = self.denoiser(samples, timesteps, encoder_hidden_states=conditions)
        elif self.kind.conditioning == "class":
            output = self.denoiser(samples, timestep=timesteps, class_labels=conditions)
        else:
            output = self.denoiser(samples, timesteps)
        # A transformer may predict variances after the noise channels.
        predicted: Tensor = output.sample[:, : samples.shape[1]]
        return predicted


@torch.no_grad()
def decode(pipeline: Any, latents: Tensor) -> Tensor:
    """Decode clean latents to images `[B, C, H, W]` in [0, 1].

    Without an autoencoder, the latents are pixels already.
    """
    vae = getattr(pipeline, "vae", None)
    pixels = latents.float()
    if vae is not None:
        pixels = vae.decode(pixels.to(vae.dtype) / vae.config.scaling_factor).sample.float()
    return (pixels / 2 + 0.5).clamp(0, 1)
