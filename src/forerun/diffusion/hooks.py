"""Wrappers around methods of a pipeline's parts, and what they count: evaluations and steps.

Several wrappers may lie around one method, such as a guidance cache around a counter of evaluations. Each
can be removed while the others stay. Without the last one, the object is as it was before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from forerun.diffusion.pipelines import denoiser_of


class Wrapper:
    """Replacement for a method; `call(inner, *args, **kwargs)` decides what runs.

    Args:
        owner: module or scheduler.
        name: name of its method.
        call: function that takes the wrapped method and then the method's own arguments.
        innermost: True to lie below the existing wrappers.
    """

    def __init__(
        self, owner: Any, name: str, call: Callable[..., Any], *, innermost: bool = False
    ) -> None:
        self.owner, self.name, self.call = owner, name, call
        self.inner: Any
        self.own: bool
        outer = getattr(owner, name)
        if innermost and isinstance(outer, Wrapper):
            lowest = outer
            while isinstance(lowest.inner, Wrapper):
                lowest = lowest.inner
            self.own, self.inner = lowest.own, lowest.inner
            lowest.inner = self
            return
        # True if the object itself, not its class, held the method; `remove` restores that.
        self.own = outer.own if isinstance(outer, Wrapper) else name in vars(owner)
        self.inner = outer
        setattr(owner, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(self.inner, *args, **kwargs)

    def remove(self) -> None:
        """Remove this wrapper; without effect if it is removed already."""
        outer = getattr(self.owner, self.name)
        if outer is self:
            if isinstance(self.inner, Wrapper) or self.own:
                setattr(self.owner, self.name, self.inner)
            else:
                delattr(self.owner, self.name)
            return
        while isinstance(outer, Wrapper):
            if outer.inner is self:
                outer.inner = self.inner
                return
            outer = outer.inner


class Handle:
    """Base of changes applied to a pipeline, which `remove` or leaving a `with` block undoes."""

    approximate = True
    """True if the samples differ from those of the unchanged pipeline."""

    def __init__(self) -> None:
        self._wrappers: list[Wrapper] = []

    def remove(self) -> None:
        """Restore the pipeline's own methods."""
        for wrapper in reversed(self._wrappers):
            wrapper.remove()
        self._wrappers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


@dataclass
class Evaluations:
    """Counts of a denoiser's runs.

    Args:
        calls: number of calls of the network, of any batch size.
        samples: number of samples denoised by one step, over all calls; a call with a batch of 8 counts 8.
        frames: number of frames in these samples; an image counts 1.
        flops: floating-point operations of these calls, if counted; else 0.
    """

    calls: int = 0
    samples: int = 0
    frames: int = 0
    flops: int = 0


def sample_argument(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The noisy samples `[B, ...]` among the arguments of a denoiser."""
    samples = args[0] if args else kwargs.get("sample", kwargs.get("hidden_states"))
    assert isinstance(samples, Tensor)
    return samples


@contextmanager
def count_evaluations(pipeline: Any, *, flops: bool = False) -> Iterator[Evaluations]:
    """Count the evaluations of a pipeline's denoiser while the block runs.

    Args:
        pipeline: pipeline from diffusers.
        flops: True to count floating-point operations too, which slows the block down. A feature cache
            skips parts of an evaluation, which only this count shows.

    Raises:
        UnsupportedModelError: for a pipeline without a denoiser.
    """
    counted = Evaluations()

    def call(inner: Any, *args: Any, **kwargs: Any) -> Any:
        counted.calls += 1
        samples = sample_argument(args, kwargs)
        counted.samples += len(samples)
        counted.frames += len(samples) * (samples.shape[2] if samples.ndim == 5 else 1)
        if not flops:
            return inner(*args, **kwargs)
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            output = inner(*args, **kwargs)
        counted.flops += counter.get_total_flops()
        return output

    wrapper = Wrapper(denoiser_of(pipeline), "forward", call, innermost=True)
    try:
        yield counted
    finally:
        wrapper.remove()


def timestep_argument(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Timestep among the arguments of a denoiser, which all samples of a call share."""
    value = args[1] if len(args) > 1 else kwargs["timestep"]
    return float(value.flatten()[0]) if isinstance(value, Tensor) else float(value)


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
        self._on_reset, self._per_step = reset, calls_per_step
        self.step, self.call, self.timestep = -1, 0, float("inf")
        self.wrapper = Wrapper(pipeline.scheduler, "set_timesteps", self._set_timesteps)

    def _set_timesteps(self, inner: Any, *args: Any, **kwargs: Any) -> Any:
        self.reset()
        return inner(*args, **kwargs)

    def reset(self) -> None:
        """Begin a new sampling run."""
        self.step, self.call, self.timestep = -1, 0, float("inf")
        self._on_reset()

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
