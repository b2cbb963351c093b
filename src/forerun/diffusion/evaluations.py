"""Counts what a pipeline's denoiser really computes, below any caches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from forerun.diffusion.pipelines import denoiser_of
from forerun.diffusion.wrapping import Wrapper


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
    found = args[0] if args else kwargs.get("sample", kwargs.get("hidden_states"))
    assert isinstance(found, Tensor)
    return found


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
