"""The conditional and unconditional halves of classifier-free guidance, in one call or in two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forerun.diffusion.hooks import sample_argument
from forerun.diffusion.pipelines import is_guided
from forerun.errors import ConfigError

# By pipeline class: whether it calls the denoiser twice per step, and whether the unconditional half comes
# first. Read from diffusers 0.42.
_KNOWN = {
    "StableDiffusionPipeline": (False, True),
    "StableDiffusionXLPipeline": (False, True),
    "StableDiffusion3Pipeline": (False, True),
    "AnimateDiffPipeline": (False, True),
    "CogVideoXPipeline": (False, True),
    "LattePipeline": (False, True),
    "PixArtAlphaPipeline": (False, True),
    "DiTPipeline": (False, False),
    "WanPipeline": (True, False),
}
# Arguments that all samples share, whatever their first dimension.
_SHARED = {"image_rotary_emb", "img_ids", "txt_ids"}


@dataclass(frozen=True)
class Halves:
    """The way a pipeline runs both halves of guidance.

    Args:
        two_call: True for two calls of the denoiser, False for one call with twice the batch.
        unconditional_first: True if the unconditional half comes first.
    """

    two_call: bool
    unconditional_first: bool

    @classmethod
    def of(cls, pipeline: Any, guidance: str, unconditional_first: bool | None) -> Halves:
        """The halves of a pipeline, as given by the caller or known for the pipeline's class.

        Raises:
            ConfigError: for a pipeline without guidance, or of an unknown class.
        """
        if not is_guided(pipeline):
            raise ConfigError(
                f"{type(pipeline).__name__} has no classifier-free guidance; there is nothing to cache."
            )
        # A subclass with its own loop may run guidance differently.
        loop = next(base for base in type(pipeline).__mro__ if "__call__" in vars(base))
        known = _KNOWN.get(loop.__name__)
        said = guidance != "auto" and unconditional_first is not None
        if known is None and not said:
            raise ConfigError(
                f"how {type(pipeline).__name__} runs its guidance is not known; "
                "set guidance ('batched' or 'two_call') and unconditional_first."
            )
        two_call, first = known or (False, False)
        return cls(
            two_call if guidance == "auto" else guidance == "two_call",
            first if unconditional_first is None else unconditional_first,
        )

    def check_batched(self, pipeline: Any, samples: Tensor) -> None:
        """Check that a call holds both halves.

        Raises:
            ConfigError: if the pipeline runs without guidance.
        """
        guided = getattr(pipeline, "do_classifier_free_guidance", None)
        if guided is None:
            half = len(samples) // 2
            guided = len(samples) % 2 == 0 and torch.equal(samples[:half], samples[half:])
        if not guided:
            raise ConfigError(
                "the pipeline runs without guidance; use a guidance_scale above 1 or remove the CFG cache."
            )

    def apart(self, denoiser: Any) -> bool:
        """True if a batched call must run its halves one by one.

        That is so if a cache of diffusers on the denoiser keeps a state for each `cache_context`. A half
        alone would otherwise read the state of both.

        Raises:
            ConfigError: for a cache that keeps one state for the whole batch.
        """
        caches = [hook for module in denoiser.modules() for hook in _stateful_hooks(module)]
        for cache in caches:
            if not (hasattr(cache, "state_manager") and hasattr(denoiser, "cache_context")):
                raise ConfigError(
                    f"a cache of the denoiser ({type(cache).__name__}) keeps one state for both halves of "
                    "guidance, and a CFG cache runs one alone; remove one of the two."
                )
        return bool(caches)

    def split(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], conditional: bool
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of a batched call, cut to one half."""
        batch = len(sample_argument(args, kwargs))
        first = conditional != self.unconditional_first

        def half(value: Any) -> Any:
            if isinstance(value, Tensor) and value.ndim and len(value) % batch == 0 and len(value):
                middle = len(value) // 2
                return value[:middle] if first else value[middle:]
            if isinstance(value, dict):
                return {key: half(inside) for key, inside in value.items()}
            if isinstance(value, (list, tuple)):
                return type(value)(half(inside) for inside in value)
            return value

        kept = {key: value if key in _SHARED else half(value) for key, value in kwargs.items()}
        return tuple(half(value) for value in args), kept

    def join(self, conditional: Any, unconditional: Tensor) -> Any:
        """Output of a batched call, from the conditional half's output and the other's prediction."""
        mine = prediction_of(conditional)
        order = (unconditional, mine) if self.unconditional_first else (mine, unconditional)
        return with_prediction(conditional, torch.cat(order))


def _stateful_hooks(module: Any) -> list[Any]:
    """Hooks of diffusers on a module that keep state from call to call."""
    registry = getattr(module, "_diffusers_hook", None)
    hooks = () if registry is None else registry.hooks.values()
    return [hook for hook in hooks if hook._is_stateful]


def prediction_of(output: Any) -> Tensor:
    """The prediction `[B, ...]` in a denoiser's output."""
    found = output[0]
    assert isinstance(found, Tensor)
    return found


def with_prediction(output: Any, prediction: Tensor) -> Any:
    """A denoiser's output with another prediction."""
    if isinstance(output, tuple):
        return (prediction, *output[1:])
    return type(output)(sample=prediction)
