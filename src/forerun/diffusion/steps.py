"""Which step of which sampling run a call of the denoiser belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forerun.diffusion.wrapping import Wrapper


def timestep_argument(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """The timestep among the arguments of a denoiser; all samples of a call share it."""
    found = args[1] if len(args) > 1 else kwargs["timestep"]
    return float(found.flatten()[0]) if isinstance(found, torch.Tensor) else float(found)


class StepTracker:
    """Counts the steps of a sampling run, and notices when another begins.

    A run begins when the pipeline sets its scheduler's timesteps, and also when a timestep is earlier
    in the run than the one before, for a scheduler that was exchanged.

    Args:
        pipeline: of diffusers.
        reset: called when a run begins.
        calls_per_step: of the denoiser; `None`: as many as come with the same timestep.

    Its fields: `step` counts from 0, `call` from 0 within the step, `total` is the number of steps if known.
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
        """A sampling run begins."""
        self.step, self.call, self.timestep = -1, 0, float("inf")
        self._on_reset()

    @property
    def total(self) -> int:
        """The number of steps of this run."""
        timesteps = getattr(self._pipeline.scheduler, "timesteps", None)
        return max(self.step + 1, 0 if timesteps is None else len(timesteps))

    @property
    def share(self) -> float:
        """The share of the run that lies before this step."""
        return self.step / self.total

    def observe(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take note of a call of the denoiser."""
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
