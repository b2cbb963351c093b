"""Sampling from diffusers pipelines with fewer network passes, exactly or approximately.

Speculative sampling keeps the distribution of a stochastic sampler exactly. Caches, key frames and
distilled students are approximate, and marked so. Needs `forerun[diffusion]`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forerun.diffusion.cfg_cache import apply_cfg_cache
    from forerun.diffusion.feature_cache import apply_feature_cache
    from forerun.diffusion.loading import open_pipeline
    from forerun.diffusion.methods import Job, Made, make, measure, psnr
    from forerun.diffusion.pipelines import GuidedDenoiser, decode, sample
    from forerun.diffusion.settings import (
        CFGCacheConfig,
        FeatureCacheConfig,
        SpeculativeSamplingConfig,
        VideoLatentCacheConfig,
    )
    from forerun.diffusion.speculative_sampling import (
        Draws,
        couple,
        sample_plainly,
        sample_speculatively,
    )
    from forerun.diffusion.step_distillation import DistillationConfig, Examples, distill
    from forerun.diffusion.training import AveragedTraining
    from forerun.diffusion.transitions import Transitions
    from forerun.diffusion.video_latent_cache import sample_clips

# Names and modules are imported when first used, so that the package alone loads neither torch nor diffusers.
_NAMES = {
    "cfg_cache": "apply_cfg_cache",
    "feature_cache": "apply_feature_cache",
    "loading": "open_pipeline",
    "methods": "Job Made make measure psnr",
    "pipelines": "GuidedDenoiser decode sample",
    "settings": "CFGCacheConfig FeatureCacheConfig SpeculativeSamplingConfig VideoLatentCacheConfig",
    "speculative_sampling": "Draws couple sample_plainly sample_speculatively",
    "step_distillation": "DistillationConfig Examples distill",
    "training": "AveragedTraining",
    "transitions": "Transitions",
    "video_latent_cache": "sample_clips",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "AveragedTraining",
    "CFGCacheConfig",
    "DistillationConfig",
    "Draws",
    "Examples",
    "FeatureCacheConfig",
    "GuidedDenoiser",
    "Job",
    "Made",
    "SpeculativeSamplingConfig",
    "Transitions",
    "VideoLatentCacheConfig",
    "apply_cfg_cache",
    "apply_feature_cache",
    "couple",
    "decode",
    "distill",
    "make",
    "measure",
    "open_pipeline",
    "psnr",
    "sample",
    "sample_clips",
    "sample_plainly",
    "sample_speculatively",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    if name in _NAMES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
