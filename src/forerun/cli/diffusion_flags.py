"""The options that the commands of `forerun diffusion` share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
from pydantic import Field

from forerun.cli.combinations import yields
from forerun.cli.derived import derived
from forerun.cli.flags import threads_option
from forerun.cli.options import Option, flag_of, given
from forerun.cli.param_types import FileName, Name
from forerun.cli.target_file import check_writable
from forerun.errors import CheckpointError, ConfigError
from forerun.files import is_regular
from forerun.options import options, pick

if TYPE_CHECKING:
    from torch import Tensor

    from forerun.diffusion.methods import Config, Job

ACROSS = 10
"""Samples in a row of a sheet at most."""


@options
class Sampling:
    """What to sample."""

    count: int = Field(default=10, ge=1, le=1_000_000, description="Samples to make.")
    labels: tuple[int, ...] = Field(
        default=(), description="Their labels, such as 3,4,6, in turn; all of 0 to 9 unless given."
    )
    steps: int = Field(default=64, ge=1, le=10_000, description="Steps of the sampler.")
    guidance_scale: float = Field(
        default=3.0, ge=1.0, le=100.0, description="Of classifier-free guidance; 1 switches it off."
    )
    eta: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="Of DDIM: the share of DDPM's noise that it adds; 0 is deterministic.",
    )
    scheduler: Literal["own", "ddpm", "ddim", "euler_ancestral"] = Field(
        default="own", description="In place of the pipeline's own: ddpm, ddim or euler_ancestral."
    )
    seed: int = Field(
        default=0, ge=0, le=2**31, description="Of the first sample's noise; each has its own."
    )
    frames: int | None = Field(
        default=None, ge=1, le=1024, description="Of a clip; 16 unless given."
    )


@options
class Methods:
    """How to take fewer passes."""

    cfg_interval: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="cfg_cache: both halves run at every n-th step at the least.",
    )
    cfg_drift_bound: float | None = Field(
        default=None,
        ge=0.0,
        le=1e6,
        description="cfg_cache: reuse until the conditional prediction has drifted by this share; 0.3 where "
        "no interval is given.",
    )
    cfg_extrapolate: bool = Field(
        default=True,
        description="cfg_cache: go on with the change between full steps, or keep the last.",
    )
    feature_interval: int = Field(
        default=2, ge=1, le=10_000, description="feature_cache: deep levels run at every n-th step."
    )
    key_interval: int = Field(
        default=5, ge=1, le=10_000, description="key_frames: every n-th frame is one."
    )
    refine_steps: int = Field(
        default=8,
        ge=0,
        le=10_000,
        description="key_frames: last steps that all frames take together.",
    )
    refine_stride: int = Field(
        default=1,
        ge=1,
        le=10_000,
        description="key_frames: how many of the schedule's steps one of these takes.",
    )
    interpolation: Literal["slerp", "linear", "nearest"] = Field(
        default="slerp", description="key_frames: of the latents between."
    )
    choose: Literal["fixed", "motion"] = Field(
        default="fixed", description="key_frames: evenly spaced, or by equal motion."
    )
    num_draft_steps: int = Field(
        default=8,
        ge=1,
        le=1024,
        description="speculative: denoising steps drafted a round at most.",
    )
    draft: Literal["frozen", "extrapolated"] = Field(
        default="frozen",
        description="speculative: as if the clean sample found last stayed, or went on changing.",
    )


def pipeline_options() -> list[Option]:
    """Which pipeline, and on how many threads."""
    return [
        Option(
            "pipeline",
            "Pipeline",
            type=Name(),
            default="images",
            help="A directory that diffusers wrote, or a small model of digits that comes along: images or "
            "images-4-steps.",
        ),
        Option(
            "conditions",
            "Pipeline",
            type=FileName(),
            help="A safetensors file with prompt_embeds [B, tokens, width], and negative_prompt_embeds if "
            "there are any, in place of labels.",
        ),
        threads_option("Pipeline"),
    ]


def sampling_options() -> list[Option]:
    """What to sample."""
    return derived(Sampling, "Sampling")


def method_options() -> list[Option]:
    """The settings of all methods."""
    return derived(Methods, "Methods")


def check_numbers(values: dict[str, Any]) -> None:
    """Refuse what no method takes, before anything is loaded.

    Raises:
        ConfigError: for a value out of its range.
    """
    pick(Sampling, {**values, "count": values.get("count", 1), "frames": values.get("frames")})
    if "cfg_interval" in values:
        pick(Methods, values)


def check_methods_own(ctx: click.Context, method: str) -> None:
    """Refuse options of other methods than the one that is chosen; help says whose each is.

    Raises:
        ConfigError: for the first that is given.
    """
    for option in method_options():
        owner, _, _ = (option.help or "").partition(":")
        name = str(option.name)
        if owner != method and given(ctx, name) and not yields(ctx, name, ("method",)):
            raise ConfigError(
                f"{flag_of(ctx, name)} is of --method {owner}, and --method is {method}; choose "
                f"{owner}, or leave it out."
            )


def open_named(values: dict[str, Any]) -> Any:
    """The pipeline of `--pipeline`, with the scheduler of `--scheduler`."""
    import torch

    from forerun.diffusion.loading import open_pipeline, resolve
    from forerun.diffusion.methods import exchange_scheduler

    if values.get("threads"):
        torch.set_num_threads(values["threads"])
    pipeline = open_pipeline(resolve(values["pipeline"]))
    if values.get("scheduler", "own") != "own":
        exchange_scheduler(pipeline, values["scheduler"])
    return pipeline


def job_of(pipeline: Any, values: dict[str, Any]) -> Job:
    """What to sample from a pipeline, by the options.

    Raises:
        ConfigError: for conditions that do not fit.
    """
    from forerun.diffusion.methods import Job
    from forerun.diffusion.pipelines import kind_of

    asked, kind = pick(Sampling, values), kind_of(pipeline)
    prompt, negative = _conditions(values["conditions"], asked.count)
    labels = None
    if kind.conditioning == "none":
        if asked.labels or prompt is not None:
            raise ConfigError(f"{kind.name} is not conditional; leave labels and conditions out.")
    elif prompt is None:
        if getattr(pipeline, "text_encoder", None) is not None:
            raise ConfigError(f"{kind.name} reads prompts, not labels; give --conditions.")
        given = asked.labels or tuple(range(min(10, _classes(pipeline))))
        labels = [given[index % len(given)] for index in range(asked.count)]
    elif asked.labels:
        raise ConfigError("labels and conditions exclude each other; leave one out.")
    most = pipeline.scheduler.config.num_train_timesteps
    if asked.steps > most:
        raise ConfigError(f"steps is {asked.steps}; this pipeline was trained with {most}.")
    if asked.frames is not None and not kind.video:
        raise ConfigError(f"{kind.name} makes images; leave frames out.")
    return Job(
        seeds=range(asked.seed, asked.seed + asked.count),
        steps=asked.steps,
        labels=labels,
        prompt_embeds=prompt,
        negative_prompt_embeds=negative,
        guidance_scale=asked.guidance_scale if kind.guided else 1.0,
        eta=asked.eta,
        num_frames=(asked.frames or 16) if kind.video else None,
    )


def _classes(pipeline: Any) -> int:
    """How many labels there are."""
    from forerun.diffusion.pipelines import denoiser_of

    config = denoiser_of(pipeline).config
    return int(config.get("num_embeds_ada_norm") or config.get("cross_attention_dim") or 10)


def _conditions(path: str | None, count: int) -> tuple[Tensor | None, Tensor | None]:
    """Rows of the file, in turn.

    Raises:
        CheckpointError: for a file that holds no such tensors.
    """
    if path is None:
        return None, None
    from safetensors.torch import load_file

    if not is_regular(path):
        raise CheckpointError(f"--conditions {path} is not a file.")
    try:
        tensors = load_file(path)
    except (
        Exception
    ) as problem:  # safetensors has an error of its own for every other kind of file.
        raise CheckpointError(f"{path} is not a safetensors file: {problem}") from problem
    prompt, negative = (
        tensors[name].float() if name in tensors else None
        for name in ("prompt_embeds", "negative_prompt_embeds")
    )
    if prompt is None or prompt.ndim != 3 or not len(prompt):
        raise CheckpointError(f"{path} has no tensor prompt_embeds [B, tokens, width].")
    rows = [index % len(prompt) for index in range(count)]
    if negative is None:
        return prompt[rows], None
    if negative.shape[-2:] != prompt.shape[-2:] or len(negative) not in (1, len(prompt)):
        raise CheckpointError(
            f"{path}: negative_prompt_embeds are {list(negative.shape)}, prompt_embeds "
            f"{list(prompt.shape)}; they must be alike, or the first of one row."
        )
    return prompt[rows], negative.expand_as(prompt)[rows]


def config_of(method: str, values: dict[str, Any]) -> Config | None:
    """The configuration of a method, by the options.

    Raises:
        ConfigError: for values that it refuses.
    """
    from forerun.diffusion.cfg_cache import CFGCacheConfig
    from forerun.diffusion.feature_cache import FeatureCacheConfig
    from forerun.diffusion.speculative_sampling import SpeculativeSamplingConfig
    from forerun.diffusion.video_latent_cache import VideoLatentCacheConfig

    asked = pick(Methods, values)
    if method == "cfg_cache":
        bound = asked.cfg_drift_bound
        if bound is None and asked.cfg_interval is None:
            bound = 0.3
        return CFGCacheConfig(
            interval=asked.cfg_interval, drift_bound=bound, extrapolate=asked.cfg_extrapolate
        )
    if method == "feature_cache":
        return FeatureCacheConfig(asked.feature_interval)
    if method == "key_frames":
        return VideoLatentCacheConfig(
            key_interval=asked.key_interval,
            refine_steps=asked.refine_steps,
            refine_stride=asked.refine_stride,
            interpolation=asked.interpolation,
            choose=asked.choose,
        )
    if method == "speculative":
        return SpeculativeSamplingConfig(asked.num_draft_steps, asked.draft)
    return None


def check_output(flag: str, path: str | None, clips: bool) -> None:
    """Check that pictures can be written there, if they are asked for.

    Raises:
        ConfigError: for a file of another kind, or one that cannot be written.
    """
    if path is None:
        return
    wanted, what = (".gif", "clips") if clips else (".png", "images")
    if Path(path).suffix.lower() != wanted:
        raise ConfigError(f"{flag} is {path}; {what} are written to a file that ends in {wanted}.")
    check_writable(flag, path)


def save_rows(rows: Sequence[Tensor], path: str) -> None:
    """The first of each row as a contact sheet, or of clips as a GIF."""
    import torch

    from forerun.diffusion.sheets import save_clips, save_sheet

    cut = torch.stack([row[:ACROSS] for row in rows])
    if rows[0].ndim == 5:
        save_clips(cut, Path(path))
    else:
        save_sheet(cut, Path(path))
