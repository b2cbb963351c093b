"""Draws docs/diffusion-images.png and docs/diffusion-clips.gif: each method beside the full sampler.

python docs/gallery.py
python docs/gallery.py --clips FOLDER

The GIF takes a pipeline of clips; ``python -m recipes.diffusion --work DIR --stages images --clips FOLDER``
makes one. Without it, only the images are drawn.

A row is a way to sample, a column the same noise and label; rows in the order of `ways`. Of clips a column is
a way and a row the same noise.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from forerun.diffusion.loading import open_pipeline, shipped
from forerun.diffusion.methods import Config, Job, make
from forerun.diffusion.settings import (
    CFGCacheConfig,
    FeatureCacheConfig,
    SpeculativeSamplingConfig,
    VideoLatentCacheConfig,
)
from forerun.diffusion.sheets import save_clips, save_sheet

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


def draw_clips(folder: Path) -> None:
    pipeline = open_pipeline(folder)
    keys = VideoLatentCacheConfig(key_interval=5, refine_steps=8, finish_key_frames=False)
    ways: list[tuple[int, Config | None]] = [
        (32, None),
        (16, None),
        (32, keys),
        (32, replace(keys, refine_steps=6, refine_stride=4)),
        (32, replace(keys, refine_steps=0)),
    ]
    clips = []
    for steps, config in ways:
        one = Job(range(100, 104), steps, [2, 3, 5, 7], guidance_scale=3.0, num_frames=16)
        clips.append(make(pipeline, one, config).images)
    save_clips(torch.stack(clips, 1), FOLDER / "diffusion-clips.gif")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=Path, metavar="FOLDER", help="a pipeline of clips")
    options = parser.parse_args()
    draw_images()
    if options.clips is not None:
        draw_clips(options.clips)
