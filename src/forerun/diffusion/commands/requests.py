"""Settings that the commands share, and the pipeline, samples and method that they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from forerun import diffusion
from forerun.diffusion.settings import (
    CFGCacheConfig,
    FeatureCacheConfig,
    SpeculativeSamplingConfig,
    VideoLatentCacheConfig,
)
from forerun.errors import CheckpointError, ConfigError
from forerun.files import is_regular
from forerun.options import FileName, Text, changes, option, options, part

if TYPE_CHECKING:
    from torch import Tensor


ACROSS = 10
"""Most samples in a row of a picture."""


@options
class Conditions:
    """Pipeline and conditions of samples."""

    pipeline: Text = option(
        default="images",
        description="A directory that diffusers wrote, or a small model of digits that comes along: "
        "images or images-4-steps.",
        section="Pipeline",
    )
    conditions: FileName | None = Field(
        default=None,
        description="A safetensors file with prompt_embeds [B, tokens, width], and negative_prompt_embeds if "
        "there are any, in place of labels.",
    )
    threads: int | None = Field(
        default=None, ge=1, description="Threads of the CPU; torch's own number unless given."
    )
    labels: tuple[Annotated[int, Field(ge=-1, le=2**31)], ...] = option(
        default=(),
        description="Labels of the samples, such as 3,4,6, in turn; all of 0 to 9 unless given.",
        section="Sampling",
    )
    guidance_scale: float = Field(
        default=3.0,
        ge=1.0,
        le=100.0,
        description="Scale of classifier-free guidance; 1 switches it off.",
    )
    seed: int = Field(
        default=0, ge=0, le=2**31, description="Seed of the first sample; each has its own."
    )

    def open(self) -> Any:
        """Open the pipeline.

        Raises:
            ForerunError: as `open_pipeline`.
        """
        import torch

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        return diffusion.open_pipeline(diffusion.loading.resolve(self.pipeline))

    def job(
        self, pipeline: Any, count: int, steps: int, eta: float, frames: int | None
    ) -> diffusion.Job:
        """Samples to make by a pipeline.

        Raises:
            CheckpointError: for a file without conditions.
            ConfigError: for conditions, steps or frames that do not fit the pipeline.
        """
        kind = diffusion.pipelines.kind_of(pipeline)
        prompt, negative = _embeds(self.conditions, count)
        most = pipeline.scheduler.config.num_train_timesteps
        if steps > most:
            raise ConfigError(f"steps is {steps}; this pipeline was trained with {most}.")
        if frames is not None and not kind.video:
            raise ConfigError(f"{kind.name} makes images; leave frames out.")
        return diffusion.Job(
            seeds=range(self.seed, self.seed + count),
            steps=steps,
            labels=self._labels(pipeline, count, prompt is not None),
            prompt_embeds=prompt,
            negative_prompt_embeds=negative,
            guidance_scale=self.guidance_scale if kind.guided else 1.0,
            eta=eta,
            num_frames=(frames or 16) if kind.video else None,
        )

    def _labels(self, pipeline: Any, count: int, prompted: bool) -> list[int] | None:
        kind = diffusion.pipelines.kind_of(pipeline)
        if kind.conditioning == "none":
            if self.labels or prompted:
                raise ConfigError(
                    f"{kind.name} is not conditional; leave labels and conditions out."
                )
            return None
        if prompted:
            if self.labels:
                raise ConfigError("labels and conditions exclude each other; leave one out.")
            return None
        if getattr(pipeline, "text_encoder", None) is not None:
            raise ConfigError(f"{kind.name} reads prompts, not labels; give conditions.")
        config = diffusion.pipelines.denoiser_of(pipeline).config
        classes = config.get("num_embeds_ada_norm") or config.get("cross_attention_dim") or 10
        labels = self.labels or range(min(10, classes))
        return [labels[index % len(labels)] for index in range(count)]


@options
class Sampling(Conditions):
    """Steps and noise of a sampler, and the number of samples and of their frames."""

    steps: int = Field(default=64, ge=1, le=10_000, description="Steps of the sampler.")
    eta: float | None = Field(
        default=None,
        ge=0.0,
        le=1.0,
        description="Share of DDPM's noise that DDIM adds; 0, which is deterministic, unless a command "
        "needs noise.",
    )
    scheduler: Literal["own", "ddpm", "ddim", "euler_ancestral"] = Field(
        default="own",
        description="Scheduler in place of the pipeline's own: ddpm, ddim or euler_ancestral.",
    )

    count: int = Field(default=10, ge=1, le=1_000_000, description="Samples to make.")
    frames: int | None = Field(
        default=None, ge=1, le=1024, description="Frames of a clip; 16 unless given."
    )

    def open(self) -> Any:
        """The pipeline, with the scheduler that was asked for.

        Raises:
            ForerunError: as `open_pipeline` and `exchange_scheduler`.
        """
        pipeline = super().open()
        if self.scheduler != "own":
            diffusion.methods.exchange_scheduler(pipeline, self.scheduler)
        return pipeline

    def samples(self, pipeline: Any) -> diffusion.Job:
        """Samples to make by a pipeline; see `job`."""
        return self.job(pipeline, self.count, self.steps, self.eta or 0.0, self.frames)


def speculative_part() -> Any:
    """Options of speculative sampling in a request."""
    hidden = ("student", "coupling")
    return part(default=SpeculativeSamplingConfig, section="Methods", without=hidden)


@options
class Methods:
    """The chosen method and the settings of every method."""

    method: Literal["none", "cfg_cache", "feature_cache", "key_frames", "speculative"] = option(
        section="Methods",
        default="none",
        description="Way to take fewer passes: cfg_cache, feature_cache and key_frames (of clips) are "
        "approximate, speculative is exact.",
    )
    cfg_cache: CFGCacheConfig = part(
        default=CFGCacheConfig(extrapolate=True),
        section="Methods",
        without=("guidance", "unconditional_first"),
        renamed={name: f"cfg_{name}" for name in ("interval", "drift_bound", "extrapolate")},
    )
    feature_cache: FeatureCacheConfig = part(
        default=FeatureCacheConfig,
        section="Methods",
        renamed={"interval": "feature_interval"},
    )
    key_frames: VideoLatentCacheConfig = part(
        default=VideoLatentCacheConfig, section="Methods", without=("finish_key_frames",)
    )
    speculative: SpeculativeSamplingConfig = speculative_part()

    def __post_init__(self) -> None:
        for name in changes(self):
            if name != self.method and hasattr(getattr(self, name), "__pydantic_fields__"):
                raise ConfigError(
                    f"options of method {name} are given, and method is {self.method}; choose {name}, or "
                    "leave them out."
                )

    def config(self) -> diffusion.methods.Config | None:
        """The method's configuration; None for the plain sampler."""
        return None if self.method == "none" else getattr(self, self.method)


def _embeds(path: str | None, count: int) -> tuple[Tensor | None, Tensor | None]:
    """Rows of a file with embeddings, in turn: those of prompts, and negative ones.

    Raises:
        CheckpointError: for a file that holds no such tensors.
    """
    if path is None:
        return None, None
    from safetensors.torch import load_file

    if not is_regular(path):
        raise CheckpointError(f"conditions {path} is not a file.")
    try:
        tensors = load_file(path)
    except Exception as problem:  # Safetensors has an error of its own.
        raise CheckpointError(f"{path} is not a safetensors file: {problem}") from problem
    names = ("prompt_embeds", "negative_prompt_embeds")
    prompt, negative = (tensors[name].float() if name in tensors else None for name in names)
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
