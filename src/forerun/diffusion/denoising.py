"""A pipeline's denoiser with its guidance, for samples that are at different steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from forerun.diffusion.pipelines import conditions_for, denoiser_of, kind_of
from forerun.errors import UnsupportedModelError

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
        classes, embeds, negative = conditions_for(
            pipeline, labels, prompt_embeds, negative_prompt_embeds
        )
        self._conditions, self._nothing = embeds, negative
        if classes is not None:
            # The index after the last label stands for no label.
            number = self.denoiser.config.num_embeds_ada_norm
            if self.guided and number != _NO_LABEL:
                raise UnsupportedModelError(
                    f"DiTPipeline takes index {_NO_LABEL} for no label; this transformer has {number} "
                    "classes, so it runs without guidance only (guidance_scale 1)."
                )
            self._conditions = torch.tensor(classes)
            self._nothing = torch.full_like(self._conditions, number)

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
