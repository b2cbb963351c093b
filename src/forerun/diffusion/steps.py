"""Tracks the sampling run and step that each call of the denoiser belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forerun.diffusion.wrapping import Wrapper


def timestep_argument(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Timestep among the arguments of a denoiser, which all samples of a call share."""
    found = args[1] if len(args) > 1 else kwargs["timestep"]
    return float(found.flatten()[0]) if isinstance(found, torch.Tensor) else float(found)


class StepTracker:
    """Counts the steps of a sampling run, and notices when another run begins.

    A run begins when the pipeline sets its scheduler's timesteps. If the scheduler was exchanged, a run
    begins when a timestep belongs to an earlier step than the one before.

    Args:
        pipeline: pipeline from diffusers.
        reset: called when a run begins.
        calls_per_step: number of calls of the denoiser per step; `None` counts calls with equal timesteps.

    Attributes:
        step: index of the step in its run, from 0.
        call: index of the call in its step, from 0.
        timestep: timestep of the last call.
    """

    def __init__(
        self, pipeline: Any, reset: Callable[[], None], calls_per_step: int | None = None
    ) -> None:
        self._pipeline, self._on_reset, self._per_step = pipeline, reset, calls_per_step
        self.step, self.call, self.timestep = -1, 0, float("inf")
        self.wrapper = Wrapper(pipeline.scheduler, "set_timesteps", self._set_timesteps)

    def _set_timesteps(self, inner: Any, *args: Any, **kwargs: Any) -> Any:
        self.reset()
        return inner(*args, **kwargs)

    def reset(self) -> None:
        """Begin a new sampling run."""
        self.step, self.call, self.timestep = -1, 0, float("inf")
        self._on_reset()

    @property
    def total(self) -> int:
        """Number of steps of this run, as far as known."""
        timesteps = getattr(self._pipeline.scheduler, "timesteps", None)
        return max(self.step + 1, 0 if timesteps is None else len(timesteps))

    @property
    def share(self) -> float:
        """Share of the run that lies before this step."""
        return self.step / self.total

    def observe(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record a call of the denoiser."""
        timestep = timestep_argument(args, kwargs)
        if timestep > self.timestep:
            self.reset()
        same = timestep == self.timestep
        full = self._per_step is not None and self.call + 1 >= self._per_step
        if same and not full:
            self.call += 1
        else:
            self.step, self.call = self.step + 1, 0
        self.timestep = timestep
