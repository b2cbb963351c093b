"""Deep features of a UNet reused between steps. Approximate.

The idea is that of DeepCache (Ma et al., arXiv 2312.00858): the features of the deep levels change slowly
from step to step, so they are computed at every n-th step only. At the other steps only the outermost
level runs, fed with the kept features. For transformers, diffusers has its own caches (`enable_cache`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from forerun.diffusion.hooks import Handle, StepTracker, Wrapper, sample_argument
from forerun.diffusion.pipelines import denoiser_name, denoiser_of
from forerun.diffusion.settings import FeatureCacheConfig
from forerun.errors import UnsupportedModelError


@dataclass
class _Features:
    """Outputs of the deep blocks at a full step, by their place in the order of execution."""

    step: int
    outputs: dict[int, Any]


class FeatureCache(Handle):
    """A feature cache on a pipeline, with counters over all sampling runs since it was applied.

    `full_calls` counts the calls of the UNet with its deep levels, `reused_calls` those without.
    """

    def __init__(self, pipeline: Any, config: FeatureCacheConfig) -> None:
        super().__init__()
        self.config = config
        self.full_calls = self.reused_calls = 0
        # One set of features for each branch of guidance, and for each batch.
        self._kept: dict[tuple[Any, ...], _Features] = {}
        self._features = _Features(0, {})
        self._reusing = False
        blocks = _deep_blocks(pipeline)
        self._steps = StepTracker(pipeline, self._kept.clear)
        # Always below a CFG cache, which decides the branches that run.
        forward = Wrapper(denoiser_of(pipeline), "forward", self._forward, innermost=True)
        deep = [
            Wrapper(block, "forward", partial(self._deep, place))
            for place, block in enumerate(blocks)
        ]
        self._wrappers = [forward, *deep, self._steps.wrapper]

    def _forward(self, inner: Any, *args: Any, **kwargs: Any) -> Any:
        self._steps.observe(args, kwargs)
        key = _branch(args, kwargs, self._steps.call)
        features = self._kept.get(key)
        self._reusing = (
            features is not None and 0 < self._steps.step - features.step < self.config.interval
        )
        if features is None or not self._reusing:
            features = self._kept[key] = _Features(self._steps.step, {})
        self._features = features
        self.reused_calls += self._reusing
        self.full_calls += not self._reusing
        return inner(*args, **kwargs)

    def _deep(self, place: int, inner: Any, *args: Any, **kwargs: Any) -> Any:
        if self._reusing:
            return self._features.outputs[place]
        output = self._features.outputs[place] = inner(*args, **kwargs)
        return output


def _branch(args: tuple[Any, ...], kwargs: dict[str, Any], call: int) -> tuple[Any, ...]:
    """Key that tells the branches of guidance apart.

    It consists of the batch and the address of the condition; without a condition, of the batch and the
    place of the call in its step.
    """
    samples = sample_argument(args, kwargs)
    condition = kwargs.get("encoder_hidden_states", args[2] if len(args) > 2 else None)
    stored = condition.data_ptr() if isinstance(condition, torch.Tensor) else None
    return (*samples.shape, samples.dtype, stored, call if stored is None else 0)


def _deep_blocks(pipeline: Any) -> list[Any]:
    """Blocks below the outermost level, in the order in which they run."""
    unet = denoiser_of(pipeline)
    parts = [getattr(unet, name, None) for name in ("down_blocks", "up_blocks")]
    if denoiser_name(pipeline) != "unet" or None in parts:
        raise UnsupportedModelError(
            f"{type(unet).__name__} has no levels to cache; for transformers use enable_cache of diffusers."
        )
    down, up = (list(part) for part in parts if part is not None)
    if len(down) < 2:
        raise UnsupportedModelError("a UNet of one level has no deep ones to cache.")
    middle = [] if unet.mid_block is None else [unet.mid_block]
    return [*down[1:], *middle, *up[:-1]]


def apply_feature_cache(pipeline: Any, config: FeatureCacheConfig) -> FeatureCache:
    """Let a UNet pipeline reuse its deep features, until the returned handle is removed.

    Raises:
        UnsupportedModelError: for a pipeline without a UNet of two levels or more.
    """
    return FeatureCache(pipeline, config)
