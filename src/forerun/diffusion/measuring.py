"""Measures each method's cost and quality against the full sampler, and its network's roofline."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from forerun.diffusion.classifier import FEATURES, Classifier
from forerun.diffusion.methods import Config, Job, Made, call_denoiser, make
from forerun.diffusion.pipelines import denoiser_of
from forerun.diffusion.quality import (
    feature_distance,
    label_accuracy,
    mean_squared_error,
    psnr,
    temporal_consistency,
)
from forerun.measure.turns import in_turns, seconds_of
from forerun.progress import report


@dataclass(frozen=True)
class MethodSetting:
    """A method with its configuration, or the plain sampler.

    Args:
        name: name in tables.
        config: configuration of the method; None for the plain sampler.
        eta: eta of the sampler in the comparison; speculative sampling needs noise.
    """

    name: str
    config: Config | None
    eta: float = 0.0


@dataclass(frozen=True)
class MethodRow:
    """Measurements of a setting, compared with the full sampler. Intervals are 95 % intervals.

    Args:
        setting: name of the setting.
        exactness: `exact` or `approximate`.
        calls, full_calls: number of successive calls of the network, here and by the full sampler.
        evaluations, full_evaluations: number of samples in these calls.
        speedup, least, most: median, least and largest of the full sampler's seconds / the setting's
            seconds, over pairs of runs.
        seconds: median time of a run.
        psnr, mse: peak signal-to-noise ratio and mean squared error, with intervals, against the full
            sampler's samples from the same noise. An exact method makes other samples of the same law.
        frechet: distance between the features of the samples and of the full sampler's samples, with an
            interval; None without a classifier, or for fewer samples than features.
        accuracy: share of samples that the classifier assigns to their label, with an interval; None
            without a classifier or labels.
        consistency: similarity of neighbouring frames, with an interval; None for images.
        facts: facts of the method.
    """

    setting: str
    exactness: str
    calls: int
    full_calls: int
    evaluations: int
    full_evaluations: int
    speedup: float
    least: float
    most: float
    seconds: float
    psnr: dict[str, float]
    mse: dict[str, float]
    frechet: dict[str, float] | None = None
    accuracy: dict[str, float] | None = None
    consistency: dict[str, float] | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def measure(
    pipeline: Any,
    job: Job,
    setting: MethodSetting,
    pairs: int,
    classifier: Classifier | None = None,
    keep: Callable[[str, Tensor], object] = lambda *_: None,
    see: Callable[[int], object] = lambda _: None,
) -> MethodRow:
    """Measure a setting in turns with the full sampler.

    Args:
        pipeline: pipeline from diffusers.
        job: samples to make.
        setting: setting to measure.
        pairs: number of pairs of timed runs, after one untimed run each.
        classifier: classifier for distance, accuracy and consistency; None leaves these out.
        keep: called with name and images of the full sampler and of the setting.
        see: called before each pair with its number.
    """
    own = replace(job, eta=setting.eta)
    full = make(pipeline, own)
    made = make(pipeline, own, setting.config)
    keep(f"the sampler, eta {setting.eta:g}", full.images)
    keep(setting.name, made.images)
    plain, other = (partial(make, pipeline, own, config) for config in (None, setting.config))
    turns = in_turns(plain, other, pairs, see)
    return MethodRow(
        setting=setting.name,
        exactness="exact" if made.exact else "approximate",
        calls=made.evaluations.calls,
        full_calls=full.evaluations.calls,
        evaluations=_passes(made),
        full_evaluations=_passes(full),
        speedup=turns.ratio,
        least=turns.least,
        most=turns.most,
        seconds=turns.other,
        psnr=asdict(psnr(made.images, full.images)),
        mse=asdict(mean_squared_error(made.images, full.images)),
        **({} if classifier is None else _judged(classifier, job, made.images, full.images)),
        facts=made.facts,
    )


def _judged(
    classifier: Classifier, job: Job, images: Tensor, others: Tensor
) -> dict[str, dict[str, float]]:
    """Distance, accuracy and consistency by the classifier, as far as they apply."""
    clips = images.ndim == 5
    frames, full = (part.flatten(0, 1) if clips else part for part in (images, others))
    judged = {}
    if len(frames) > FEATURES:
        judged["frechet"] = feature_distance(classifier, frames, full)
    if job.labels is not None:
        each = len(frames) // len(job.labels)
        labels = [label for label in job.labels for _ in range(each)]
        judged["accuracy"] = label_accuracy(classifier, frames, labels)
    if clips:
        judged["consistency"] = temporal_consistency(classifier, images)
    return {name: asdict(interval) for name, interval in judged.items()}


def _passes(made: Made) -> int:
    """Number of samples that the network ran; for clips, number of frames."""
    return made.evaluations.frames if made.images.ndim == 5 else made.evaluations.samples


@dataclass(frozen=True)
class BatchRun:
    """One run of a denoiser at a batch size.

    Args:
        batch: number of samples.
        flops: floating-point operations.
        bytes: bytes of the weights, which are the least that a run reads.
        seconds: median time.
    """

    batch: int
    flops: int
    bytes: int
    seconds: float

    @property
    def intensity(self) -> float:
        """Upper bound of the operations per byte; activations are read too."""
        return self.flops / self.bytes


def runs_by_batch(
    pipeline: Any, batches: Sequence[int], num_frames: int | None = None, times: int = 7
) -> list[BatchRun]:
    """Time runs of a pipeline's denoiser at some batch sizes, for a roofline."""
    from torch.utils.flop_counter import FlopCounterMode

    weights = denoiser_of(pipeline).parameters()
    size = sum(weight.numel() * weight.element_size() for weight in weights)
    runs = []
    for index, batch in enumerate(batches):
        report("batches", index, len(batches))
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            call_denoiser(pipeline, batch, num_frames)
        call = partial(call_denoiser, pipeline, batch, num_frames)
        taken = [seconds_of(call) for _ in range(times)]
        runs.append(BatchRun(batch, counter.get_total_flops(), size, statistics.median(taken)))
    report("batches", 1, 1)
    return runs


def machine_limits() -> tuple[float, float]:
    """Best measured limits of this machine with torch: bytes read and fp32 operations per second."""
    numbers, square = torch.zeros(64 << 20), torch.zeros(1024, 1024)

    def best(run: Callable[[], object]) -> float:
        return min(seconds_of(run) for _ in range(5))

    reading, computing = best(lambda: torch.sum(numbers)), best(lambda: square @ square)
    return numbers.numel() * numbers.element_size() / reading, 2 * 1024**3 / computing
