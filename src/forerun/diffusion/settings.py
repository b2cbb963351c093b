"""Settings of the methods, which their functions and the requests of commands share; without torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from forerun.errors import ConfigError
from forerun.options import options

_Interval = Annotated[int, Field(ge=1, le=10_000)]
Interpolation = Literal["slerp", "linear"]
USUAL_DRIFT = 0.3
"""Bound of drift where a CFG cache has no schedule."""


@options
class CFGCacheConfig:
    """Schedule and form in which the unconditional prediction is reused.

    Args:
        guidance: whether the pipeline runs both halves in one call or in two; `auto` for known pipelines.
        unconditional_first: whether the unconditional half or call comes first; `None` for known pipelines.
    """

    interval: _Interval | None = Field(
        default=None, description="cfg_cache: both halves run at least at every n-th step."
    )
    drift_bound: Annotated[float, Field(ge=0.0)] | None = Field(
        default=None,
        description="cfg_cache: reuse until the conditional prediction of a sample has drifted by this share "
        "of its norm; 0.3 where no interval is given.",
    )
    extrapolate: bool = Field(
        default=False,
        description="cfg_cache: extrapolate the last two full steps, instead of repeating the last.",
    )
    guidance: Literal["auto", "batched", "two_call"] = "auto"
    unconditional_first: bool | None = None

    @property
    def bound(self) -> float | None:
        """Bound of drift in use; None ignores drift."""
        unset = self.interval is None and self.drift_bound is None
        return USUAL_DRIFT if unset else self.drift_bound


@options
class FeatureCacheConfig:
    """Schedule on which deep features are reused."""

    interval: _Interval = Field(
        default=2, description="feature_cache: deep levels run at every n-th step."
    )


@options
class VideoLatentCacheConfig:
    """Settings of key frames, which are denoised fully, and of the frames between them.

    With a stride above 1, refinement begins at more noise and repairs larger errors of interpolation, in
    few passes.

    Args:
        finish_key_frames: True if the key frames first take the last steps by themselves, and are then
            interpolated; otherwise their predicted clean latents are interpolated.
    """

    key_interval: _Interval = Field(
        default=5, description="key_frames: every n-th frame and the last are key frames."
    )
    interpolation: Interpolation = Field(
        default="slerp", description="key_frames: interpolation of the latents between key frames."
    )
    refine_steps: Annotated[int, Field(ge=0, le=10_000)] = Field(
        default=8, description="key_frames: last steps that all frames take together."
    )
    refine_stride: _Interval = Field(
        default=1, description="key_frames: steps of the schedule in one of these last steps."
    )
    finish_key_frames: bool = True

    @property
    def refined_share(self) -> int:
        """Number of last steps of the schedule that refinement replaces."""
        return self.refine_steps * self.refine_stride

    def check_steps(self, steps: int) -> None:
        """Check that a schedule of `steps` steps is long enough, and divisible by the stride.

        Raises:
            ConfigError: if it is not.
        """
        if steps % self.refine_stride:
            raise ConfigError(
                f"refine_stride must divide the {steps} steps, got {self.refine_stride}."
            )
        if self.refined_share >= steps:
            times = f" times refine_stride ({self.refine_stride})" if self.refine_stride > 1 else ""
            raise ConfigError(
                f"refine_steps ({self.refine_steps}){times} must be fewer than the {steps} steps, so that "
                "some are left for the key frames."
            )


@options
class SpeculativeSamplingConfig:
    """Settings of speculative sampling.

    Args:
        student: a cheaper network that drafts step by step instead.
        coupling: function with the arguments and results of `couple`, which is used unless another is
            given, for experiments; `benchmarks.diffusion_proof` tests whether one is exact.
    """

    num_draft_steps: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=8,
        description="speculative: most denoising steps that a round drafts, and the network checks at once.",
    )
    student: SkipJsonSchema[Callable[..., Any] | None] = None
    coupling: SkipJsonSchema[Callable[..., Any] | None] = None
