"""What the studies of diffusion share: the shipped models, fixed noise, and runs that are compared."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forerun.diffusion.hooks import Evaluations, count_evaluations
from forerun.diffusion.pipelines import draw_noise, kind_of, sample

GUIDANCE_SCALE = 3.0
MAKE_CLIPS = "python -m recipes.diffusion --work diffusion-work --stages images --clips clips"


def shipped(name: str) -> Path:
    """A file or folder of the shipped diffusion models."""
    return Path(str(files("forerun_zoo"))) / "diffusion" / name


@dataclass(frozen=True)
class Task:
    """Samples to make: so many from fixed noise, with the ten labels in turn."""

    count: int
    steps: int
    guidance_scale: float = GUIDANCE_SCALE
    num_frames: int | None = None

    @property
    def labels(self) -> list[int]:
        return [number % 10 for number in range(self.count)]

    def noise(self, pipeline: Any) -> Tensor:
        return draw_noise(kind_of(pipeline), range(self.count), self.num_frames)

    def run(self, pipeline: Any) -> Tensor:
        """Images in [0, 1]: `[B, 1, 32, 32]`, clips `[B, F, 1, 32, 32]`."""
        return sample(
            pipeline,
            self.noise(pipeline),
            steps=self.steps,
            labels=self.labels,
            guidance_scale=self.guidance_scale,
        )

    def counted(self, pipeline: Any, *, flops: bool = False) -> tuple[Tensor, Evaluations]:
        """The images, and what the denoiser computed for them."""
        with count_evaluations(pipeline, flops=flops) as counted:
            images = self.run(pipeline)
        return images, counted


def set_threads(threads: int) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(0)
