"""Draws docs/diffusion-images.png: each method beside the full sampler.

python docs/gallery.py

A row is a way to sample, a column the same noise and label; rows in the order of `ways`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from forerun.diffusion.cfg_cache import CFGCacheConfig
from forerun.diffusion.feature_cache import FeatureCacheConfig
from forerun.diffusion.methods import Config, Job, make
from forerun.diffusion.pipelines import open_pipeline
from forerun.diffusion.sheets import save_sheet
from forerun.diffusion.shipped import shipped
from forerun.diffusion.speculative_sampling import SpeculativeSamplingConfig

FOLDER = Path(__file__).parent
LABELS = list(range(10))


def job(steps: int, eta: float = 0.0) -> Job:
    """The samples of a row."""
    return Job(range(100, 110), steps, LABELS, guidance_scale=3.0, eta=eta)


def draw_images() -> None:
    teacher, student = open_pipeline(shipped("images")), open_pipeline(shipped("images-4-steps"))
    ways: list[tuple[Any, Job, Config | None]] = [
        (teacher, job(64), None),
        (teacher, job(64), CFGCacheConfig(interval=4, extrapolate=True)),
        (teacher, job(64), CFGCacheConfig(drift_bound=0.3, extrapolate=True)),
        (teacher, job(64), FeatureCacheConfig(3)),
        (teacher, job(4), None),
        (student, job(4), None),
        (teacher, job(64, eta=1.0), None),
        (teacher, job(64, eta=1.0), SpeculativeSamplingConfig(8)),
    ]
    rows = [make(pipeline, one, config).images for pipeline, one, config in ways]
    save_sheet(torch.stack(rows), FOLDER / "diffusion-images.png", scale=2)


if __name__ == "__main__":
    draw_images()
