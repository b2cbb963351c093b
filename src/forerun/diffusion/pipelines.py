"""Inspects pipelines of diffusers, runs their own loops, and runs their denoisers alone.

Noise is always given, so that two methods can be compared from the same start.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from unittest.mock import patch

import torch
from torch import Generator, Tensor

from forerun.errors import ConfigError, UnsupportedModelError

_DENOISERS = ("unet", "transformer")
# The index for no label in DiTPipeline.
_NO_LABEL = 1000

Denoiser = Literal["unet", "transformer"]
Conditioning = Literal["prompt", "class", "none"]


@dataclass(frozen=True)
class PipelineKind:
    """Kind of a pipeline.

    Args:
        name: name of the pipeline's class.
        denoiser: component that is run at each step.
        conditioning: `prompt` for prompt embeddings, `class` for labels, or `none`.
        video: True if the pipeline makes clips.
        latent_shape: shape of one sample's latents, `(C, H, W)`; a clip has its frames after the channels.
        guided: True if the pipeline supports classifier-free guidance.
    """

    name: str
    denoiser: Denoiser
    conditioning: Conditioning
    video: bool
    latent_shape: tuple[int, int, int]
    guided: bool

    def noise_shape(self, count: int, num_frames: int | None = None) -> tuple[int, ...]:
        """Shape of the noise that `count` samples start from.

        Raises:
            ConfigError: for frames of images, or clips without a number of frames.
        """
        if self.video != (num_frames is not None):
            what = "clips; say how many frames" if self.video else "images, which have no frames"
            raise ConfigError(f"{self.name} makes {what}.")
        channels, height, width = self.latent_shape
        frames = () if num_frames is None else (num_frames,)
        return (count, channels, *frames, height, width)


def denoiser_name(pipeline: Any) -> Denoiser:
    """Name of the component that is run at each step.

    Raises:
        UnsupportedModelError: for a pipeline without a denoiser.
    """
    for name in _DENOISERS:
        if isinstance(getattr(pipeline, name, None), torch.nn.Module):
            return name  # type: ignore[return-value]
    raise UnsupportedModelError(
        f"{type(pipeline).__name__} has no denoiser: neither a unet nor a transformer."
    )


def denoiser_of(pipeline: Any) -> Any:
    """The module that is run at each step; see `denoiser_name`."""
    return getattr(pipeline, denoiser_name(pipeline))


def is_guided(pipeline: Any) -> bool:
    """True if a pipeline supports classifier-free guidance."""
    return "guidance_scale" in inspect.signature(type(pipeline).__call__).parameters


def kind_of(pipeline: Any) -> PipelineKind:
    """Kind of a pipeline, from its components and the arguments of its call.

    Raises:
        UnsupportedModelError: for a pipeline without a denoiser, or one of unknown size.
    """
    name = denoiser_name(pipeline)
    config = getattr(pipeline, name).config
    accepted = inspect.signature(type(pipeline).__call__).parameters
    conditioning: Conditioning = "none"
    if "prompt_embeds" in accepted:
        conditioning = "prompt"
    elif "class_labels" in accepted:
        conditioning = "class"
    size, channels = config.get("sample_size"), config.get("in_channels")
    if size is None or channels is None:
        raise UnsupportedModelError(
            f"the {name} of {type(pipeline).__name__} does not say its sample_size and in_channels."
        )
    height, width = (size, size) if isinstance(size, int) else size
    return PipelineKind(
        name=type(pipeline).__name__,
        denoiser=name,
        conditioning=conditioning,
        video="num_frames" in accepted,
        latent_shape=(channels, height, width),
        guided=is_guided(pipeline),
    )


def label_embeds(labels: Sequence[int], width: int) -> Tensor:
    """Labels as prompt embeddings `[B, 1, width]`: one-hot rows, and zeros for -1, which is no label.

    Raises:
        ConfigError: for a label out of range.
    """
    embeds = torch.zeros(len(labels), 1, width)
    for row, label in enumerate(labels):
        if not -1 <= label < width:
            raise ConfigError(f"label {label} does not fit; use -1 to {width - 1}.")
        if label >= 0:
            embeds[row, 0, label] = 1.0
    return embeds


def draw_noise(kind: PipelineKind, seeds: Sequence[int], num_frames: int | None = None) -> Tensor:
    """Draw the initial noise `[B, ...]`; each sample's noise depends on its own seed alone."""
    shape = kind.noise_shape(1, num_frames)
    return torch.cat([torch.randn(shape, generator=Generator().manual_seed(s)) for s in seeds])


@torch.no_grad()
def sample(
    pipeline: Any,
    noise: Tensor,
    *,
    steps: int,
    labels: Sequence[int] | None = None,
    prompt_embeds: Tensor | None = None,
    negative_prompt_embeds: Tensor | None = None,
    guidance_scale: float | None = None,
    eta: float = 0.0,
    generator: Generator | None = None,
    latent: bool = False,
) -> Tensor:
    """Run a pipeline's own loop from given noise.

    Returns:
        Images `[B, C, H, W]` or clips `[B, F, C, H, W]` in [0, 1]; latents of the noise's shape if asked.

    Args:
        pipeline: pipeline from diffusers.
        noise: initial noise `[B, C, H, W]`, for clips `[B, C, F, H, W]`.
        steps: number of steps of the scheduler.
        labels: one label per sample; for a pipeline with prompt embeddings they become one-hot rows.
        prompt_embeds: prompt embeddings `[B, tokens, width]`, in place of labels.
        negative_prompt_embeds: negative prompt embeddings for guidance; zeros if not given.
        guidance_scale: guidance scale; 1 is no guidance, and the default is the pipeline's own.
        eta: eta of DDIM; 0 is deterministic.
        generator: generator of the noise that a stochastic scheduler adds.
        latent: True to return latents without decoding them.

    Raises:
        ConfigError: for arguments that the pipeline does not take.
    """
    kind = kind_of(pipeline)
    if noise.ndim != (5 if kind.video else 4):
        raise ConfigError(f"noise of shape {tuple(noise.shape)} does not fit {kind.name}.")
    accepted = inspect.signature(type(pipeline).__call__).parameters
    arguments: dict[str, Any] = {"num_inference_steps": steps, "generator": generator}
    conditions = conditions_for(pipeline, labels, prompt_embeds, negative_prompt_embeds)
    arguments |= _condition_arguments(kind, len(noise), *conditions)
    if guidance_scale is not None:
        arguments["guidance_scale"] = guidance_scale
    if eta:
        arguments["eta"] = eta
    if kind.video:
        arguments["num_frames"] = noise.shape[2]
    if "latents" in accepted:
        arguments["latents"] = noise
    if latent and "prompt_embeds" not in accepted:
        raise ConfigError(f"{kind.name} does not hand out its latents; take its images.")
    arguments["output_type"] = "latent" if latent else "pt"
    _check_accepted(kind, arguments, accepted)
    with _given_noise(pipeline, None if "latents" in accepted else noise):
        output = pipeline(**arguments)[0]
    return torch.as_tensor(output)


def _condition_arguments(
    kind: PipelineKind,
    count: int,
    labels: list[int] | None,
    embeds: Tensor | None,
    negative: Tensor | None,
) -> dict[str, Any]:
    """Arguments of a pipeline's call for its conditions."""
    given = labels if embeds is None else embeds
    if given is None:
        return {"batch_size": count}
    if len(given) != count:
        raise ConfigError(
            f"give {kind.name} a condition for each sample, {count} of them, not {len(given)}."
        )
    if embeds is None:
        return {"class_labels": labels}
    return {"prompt_embeds": embeds, "negative_prompt_embeds": negative}


def conditions_for(
    pipeline: Any, labels: Sequence[int] | None, embeds: Tensor | None, negative: Tensor | None
) -> tuple[list[int] | None, Tensor | None, Tensor | None]:
    """Labels, or prompt embeddings with negative ones, as a pipeline's denoiser takes them.

    Labels of a pipeline with prompt embeddings become one-hot rows; negative embeddings are zeros unless
    given.

    Raises:
        ConfigError: for conditions that the pipeline does not take, and for missing ones.
    """
    kind, config = kind_of(pipeline), denoiser_of(pipeline).config
    if kind.conditioning == "none":
        if labels is not None or embeds is not None:
            raise ConfigError(
                f"{kind.name} is not conditional: it takes neither labels nor prompts."
            )
        return None, None, None
    if (labels is None) == (embeds is None):
        raise ConfigError(f"give {kind.name} either labels or prompt embeddings.")
    if kind.conditioning == "class":
        if labels is None:
            raise ConfigError(f"{kind.name} takes labels, not prompt embeddings.")
        classes = config.num_embeds_ada_norm
        wrong = [label for label in labels if not 0 <= label < classes]
        if wrong:
            raise ConfigError(f"label {wrong[0]} does not fit; use 0 to {classes - 1}.")
        return list(labels), None, None
    width = config.get("cross_attention_dim")
    if labels is not None:
        if not isinstance(width, int):
            raise ConfigError(f"{kind.name} takes prompt embeddings, not labels.")
        embeds = label_embeds(labels, width)
    assert embeds is not None
    if embeds.ndim != 3 or not len(embeds) or width not in (None, embeds.shape[-1]):
        raise ConfigError(
            f"prompt_embeds are [B, tokens, {width}] for this pipeline, not {list(embeds.shape)}."
        )
    if negative is not None and negative.shape != embeds.shape:
        raise ConfigError(
            f"negative_prompt_embeds are {list(negative.shape)}, prompt_embeds {list(embeds.shape)}; "
            "they must be alike."
        )
    return None, embeds, torch.zeros_like(embeds) if negative is None else negative


def _check_accepted(kind: PipelineKind, arguments: dict[str, Any], accepted: Any) -> None:
    for name in arguments:
        if name not in accepted:
            raise ConfigError(f"{kind.name} does not take {name}.")


@contextmanager
def _given_noise(pipeline: Any, noise: Tensor | None) -> Iterator[None]:
    """Let a pipeline that draws its own noise start from given noise.

    The pipeline's call to `randn_tensor` of its module returns the noise. Schedulers call `randn_tensor` of
    their own modules.
    """
    if noise is None:
        yield
        return
    for base in type(pipeline).__mro__:
        module = sys.modules[base.__module__]
        if hasattr(module, "randn_tensor"):
            break
    else:
        raise ConfigError(f"{type(pipeline).__name__} cannot start from given noise.")

    def given(shape: Any, *_: Any, **__: Any) -> Tensor:
        if tuple(shape) != tuple(noise.shape):
            raise ConfigError(
                f"noise of shape {tuple(noise.shape)} does not fit; {type(pipeline).__name__} "
                f"takes {tuple(shape)}."
            )
        return noise.clone()

    with patch.object(module, "randn_tensor", given):
        yield


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
