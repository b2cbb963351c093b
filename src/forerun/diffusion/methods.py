"""One call for all sampling methods, with their costs and quality beside the full sampler's."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from forerun.diffusion.cfg_cache import apply_cfg_cache
from forerun.diffusion.feature_cache import apply_feature_cache
from forerun.diffusion.hooks import Evaluations, count_evaluations
from forerun.diffusion.loading import diffusers
from forerun.diffusion.pipelines import (
    GuidedDenoiser,
    decode,
    denoiser_of,
    draw_noise,
    kind_of,
    sample,
)
from forerun.diffusion.settings import (
    CFGCacheConfig,
    FeatureCacheConfig,
    SpeculativeSamplingConfig,
    VideoLatentCacheConfig,
)
from forerun.diffusion.speculative_sampling import Draws, sample_speculatively
from forerun.diffusion.transitions import STOCHASTIC, Transitions
from forerun.diffusion.video_latent_cache import sample_clips
from forerun.errors import ConfigError, UnknownNameError, UnsupportedModelError
from forerun.measure.intervals import Interval, mean
from forerun.measure.turns import in_turns, seconds_of
from forerun.progress import report
from forerun.report.table import Row

Config = CFGCacheConfig | FeatureCacheConfig | VideoLatentCacheConfig | SpeculativeSamplingConfig
SCHEDULERS = {
    "ddpm": "DDPMScheduler",
    "ddim": "DDIMScheduler",
    "euler_ancestral": "EulerAncestralDiscreteScheduler",
}
"""Schedulers that can replace a pipeline's own, by name."""
# Runs of a denoiser whose median is its time.
_RUNS = 7


@dataclass(frozen=True)
class Job:
    """Description of the samples to make.

    Args:
        seeds: seed of the noise of each sample.
        steps: number of steps of the sampler.
        labels: label of each sample; None for a pipeline without labels, or with prompts.
        prompt_embeds, negative_prompt_embeds: embeddings `[B, tokens, width]`, in place of labels.
        guidance_scale: guidance scale; 1 is no guidance.
        eta: eta of DDIM, which is the share of DDPM's noise; 0 is deterministic.
        num_frames: number of frames of clips; None for images.
    """

    seeds: Sequence[int]
    steps: int
    labels: Sequence[int] | None = None
    prompt_embeds: Tensor | None = None
    negative_prompt_embeds: Tensor | None = None
    guidance_scale: float = 1.0
    eta: float = 0.0
    num_frames: int | None = None

    @property
    def conditions(self) -> dict[str, Any]:
        """Labels, prompts and guidance of the samples, as keyword arguments."""
        return {
            "labels": self.labels,
            "prompt_embeds": self.prompt_embeds,
            "negative_prompt_embeds": self.negative_prompt_embeds,
            "guidance_scale": self.guidance_scale,
        }


@dataclass(frozen=True)
class Made:
    """Samples, and the costs of making them.

    Args:
        images: images `[B, C, H, W]` or clips `[B, F, C, H, W]` in [0, 1].
        exact: True if the samples have the distribution of the plain sampler.
        evaluations: successive runs of the network, and samples in them.
        seconds: time from the noise to the images.
        facts: facts of the method.
    """

    images: Tensor
    exact: bool
    evaluations: Evaluations
    seconds: float
    facts: dict[str, Any] = field(default_factory=dict)


def exchange_scheduler(pipeline: Any, name: str) -> None:
    """Give a pipeline another scheduler with the same noise levels.

    Raises:
        UnknownNameError: for a name that is not in SCHEDULERS.
        UnsupportedModelError: if the pipeline's own scheduler has no betas, as in flow matching.
    """
    if name not in SCHEDULERS:
        raise UnknownNameError("scheduler", name, SCHEDULERS)
    config = dict(pipeline.scheduler.config)
    if "beta_schedule" not in config:
        raise UnsupportedModelError(
            f"{type(pipeline.scheduler).__name__} has no betas, so its noise levels are not {name}'s."
        )
    # DDPM and DDIM clip by default.
    config.setdefault("clip_sample", False)
    pipeline.scheduler = getattr(diffusers(), SCHEDULERS[name]).from_config(config)


def make(pipeline: Any, job: Job, config: Config | None = None) -> Made:
    """Make samples by one method, or by the plain sampler.

    All methods start from the same noise and add the same noise, given by each sample's seed.

    Raises:
        UnsupportedModelError: for a network whose samples are not finite.
        ForerunError: for settings that the method does not take; see the method's module.
    """
    started = perf_counter()
    with count_evaluations(pipeline) as counted:
        images, exact, facts = _run(pipeline, job, config)
    if not bool(images.isfinite().all()):
        raise UnsupportedModelError("the samples are not finite; look at weights and conditions.")
    return Made(images, exact, counted, perf_counter() - started, facts)


def _run(pipeline: Any, job: Job, config: Config | None) -> tuple[Tensor, bool, dict[str, Any]]:
    kind = kind_of(pipeline)
    shape = kind.noise_shape(1, job.num_frames)[1:]
    if isinstance(config, SpeculativeSamplingConfig):
        return _speculate(pipeline, job, shape, config)
    noise = draw_noise(kind, job.seeds, job.num_frames)
    if isinstance(config, VideoLatentCacheConfig):
        if job.eta:
            raise ConfigError("interpolating latents needs DDIM with eta 0; leave eta out.")
        clips = sample_clips(pipeline, noise, steps=job.steps, config=config, **job.conditions)
        return clips.images, False, {"passes": clips.passes, "full_passes": clips.full_passes}
    applied: Any = nullcontext()
    if isinstance(config, CFGCacheConfig):
        applied = apply_cfg_cache(pipeline, config)
    elif isinstance(config, FeatureCacheConfig):
        applied = apply_feature_cache(pipeline, config)
    conditions = dict(job.conditions)
    if not kind.guided:
        del conditions["guidance_scale"]
    draws = Draws.of(job.seeds, job.steps, shape) if is_stochastic(pipeline, job.eta) else None
    with applied, _steps_draw(pipeline, draws), _reported(pipeline):
        images = sample(pipeline, noise, steps=job.steps, eta=job.eta, **conditions)
    return images, config is None, {}


@contextmanager
def _steps_draw(pipeline: Any, draws: Draws | None) -> Iterator[None]:
    """Let a scheduler's steps add given noise.

    Each step calls `randn_tensor` of the scheduler's module once.
    """
    if draws is None:
        yield
        return
    steps = iter(draws.noise.unbind(1))

    def given(shape: Any, dtype: Any = None, **_: Any) -> Tensor:
        return next(steps).to(dtype or torch.float32).reshape(shape)

    with patch.object(sys.modules[type(pipeline.scheduler).__module__], "randn_tensor", given):
        yield


class _StepBar:
    """Replacement for a pipeline's progress bar that reports the steps.

    A pipeline either iterates over it, or calls `update` after each step.
    """

    def __init__(self, iterable: Sequence[Any] | None = None, total: int | None = None) -> None:
        self.steps = () if iterable is None else iterable
        self.total = len(self.steps) if total is None else total
        self.done = 0

    def update(self, count: int = 1) -> None:
        self.done += count
        report("denoising steps", self.done, self.total)

    def __iter__(self) -> Iterator[Any]:
        for step in self.steps:
            yield step
            self.update()

    def __enter__(self) -> _StepBar:
        return self

    def __exit__(self, *_: object) -> None:
        return None


@contextmanager
def _reported(pipeline: Any) -> Iterator[None]:
    """Report the steps of a pipeline's loop while the block runs, in place of its progress bar."""
    with patch.object(pipeline, "progress_bar", _StepBar):
        yield


def is_stochastic(pipeline: Any, eta: float) -> bool:
    """True if a pipeline's sampler is known to add noise at its steps."""
    name = type(pipeline.scheduler).__name__
    return name in STOCHASTIC and (name != "DDIMScheduler" or eta > 0)


def _speculate(
    pipeline: Any, job: Job, shape: tuple[int, ...], config: SpeculativeSamplingConfig
) -> tuple[Tensor, bool, dict[str, Any]]:
    network = GuidedDenoiser(pipeline, **job.conditions)
    transitions = Transitions.of(pipeline.scheduler, job.steps, job.eta)
    latents, passes = sample_speculatively(
        network,
        transitions,
        Draws.of(job.seeds, job.steps, shape),
        config,
        progress=lambda done, total: report("denoising steps", done, total),
    )
    facts = {"acceptance": passes.acceptance, "sequential_passes": passes.sequential}
    return decode(pipeline, latents), True, facts


@torch.no_grad()
def call_denoiser(pipeline: Any, batch: int, num_frames: int | None = None) -> None:
    """Run a pipeline's denoiser once over `batch` samples, as its sampler does without guidance."""
    kind = kind_of(pipeline)
    samples = torch.zeros(kind.noise_shape(batch, num_frames))
    labels = None if kind.conditioning == "none" else [0] * batch
    if kind.video:
        width = denoiser_of(pipeline).config.cross_attention_dim
        # One condition for each frame.
        conditions = torch.zeros(len(samples) * samples.shape[2], 1, width)
        denoiser_of(pipeline)(samples, torch.tensor(1), encoder_hidden_states=conditions)
        return
    times = torch.ones(batch, dtype=torch.long)
    GuidedDenoiser(pipeline, labels=labels)(samples, times, torch.arange(batch))


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
    pipeline: Any, batches: Sequence[int], num_frames: int | None = None
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
        seconds = statistics.median(seconds_of(call) for _ in range(_RUNS))
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
