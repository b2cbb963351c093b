"""Measures each method's cost and quality against the full sampler, and its network's roofline."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor

from forerun.diffusion.methods import Config, Job, call_denoiser, make
from forerun.diffusion.pipelines import denoiser_of
from forerun.errors import ConfigError
from forerun.measure.intervals import Interval, mean
from forerun.measure.turns import in_turns, seconds_of
from forerun.progress import report
from forerun.report.table import Row


def measure(
    pipeline: Any,
    job: Job,
    config: Config,
    pairs: int,
    name: str = "",
    keep: Callable[[str, Tensor], object] = lambda *_: None,
    see: Callable[[int], object] = lambda _: None,
) -> Row:
    """Measure a setting in turns with the full sampler.

    Args:
        pipeline: pipeline from diffusers.
        job: samples to make.
        config: configuration of the method.
        pairs: number of pairs of timed runs, after one untimed run each.
        name: name of the setting in tables.
        keep: called with name and images of the full sampler and of the setting.
        see: called before each pair with its number.

    Returns:
        Calls of the network and samples in them, here and by the full sampler; median, least and largest
        ratio of their seconds; and the PSNR against its samples from the same noise, with a 95 % interval.
        An exact method makes other samples of the same law.
    """
    full, made = make(pipeline, job), make(pipeline, job, config)
    keep(f"the sampler, eta {job.eta:g}", full.images)
    keep(name, made.images)
    plain, other = (partial(make, pipeline, job, way) for way in (None, config))
    turns = in_turns(plain, other, pairs, see)
    return {
        "setting": name,
        "exactness": "exact" if made.exact else "approximate",
        "calls": made.evaluations.calls,
        "full_calls": full.evaluations.calls,
        "evaluations": made.evaluations.frames,
        "full_evaluations": full.evaluations.frames,
        "speedup": turns.ratio,
        "least": turns.least,
        "most": turns.most,
        "seconds": turns.other,
        "psnr": asdict(psnr(made.images, full.images)),
        "facts": made.facts,
    }


def psnr(samples: Tensor, reference: Tensor) -> Interval:
    """Peak signal-to-noise ratio in dB of samples `[B, ...]` in [0, 1] against their references.

    Raises:
        ConfigError: for samples of another shape, such as clips with another number of frames.
    """
    if samples.shape != reference.shape:
        raise ConfigError(
            f"samples of shape {tuple(samples.shape)} cannot be compared with a reference of "
            f"{tuple(reference.shape)}."
        )
    errors = mean((samples - reference).double().square().flatten(1).mean(1).numpy())
    bounds = (errors.value, errors.high, errors.low)
    return Interval(*(-10.0 * math.log10(max(bound, 1e-12)) for bound in bounds))


def runs_by_batch(
    pipeline: Any, batches: Sequence[int], num_frames: int | None = None, times: int = 7
) -> list[Row]:
    """Runs of a pipeline's denoiser by batch size, for a roofline.

    Each has its operations, the bytes of the weights, which are the least that a run reads, the median of
    its seconds, and its intensity: at most so many operations a byte, because activations are read too.
    """
    from torch.utils.flop_counter import FlopCounterMode

    weights = denoiser_of(pipeline).parameters()
    size = sum(weight.numel() * weight.element_size() for weight in weights)
    runs = list[Row]()
    for index, batch in enumerate(batches):
        report("batches", index, len(batches))
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            call_denoiser(pipeline, batch, num_frames)
        call = partial(call_denoiser, pipeline, batch, num_frames)
        seconds = statistics.median(seconds_of(call) for _ in range(times))
        run = {"batch": batch, "flops": counter.get_total_flops(), "bytes": size}
        runs.append({**run, "seconds": seconds, "intensity": run["flops"] / size})
    report("batches", 1, 1)
    return runs


def machine_limits() -> tuple[float, float]:
    """Best measured limits of this machine with torch: bytes read and fp32 operations per second."""
    numbers, square = torch.zeros(64 << 20), torch.zeros(1024, 1024)

    def best(run: Callable[[], object]) -> float:
        return min(seconds_of(run) for _ in range(5))

    reading, computing = best(lambda: torch.sum(numbers)), best(lambda: square @ square)
    return numbers.numel() * numbers.element_size() / reading, 2 * 1024**3 / computing
