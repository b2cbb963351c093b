"""Classifier-free guidance with the unconditional prediction reused between steps. Approximate.

Guidance runs the denoiser twice per step, with and without the condition. The contribution of the
unconditional run changes slowly, so it can be reused for some steps. With both runs at every k-th step
only, 2k/(k+1) times fewer evaluations remain. An *error-gated* schedule instead watches the conditional
prediction, which is computed at every step anyway. Both runs are repeated once it has drifted further than
a bound set by the user.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from forerun.diffusion.halves import Halves, prediction_of, with_prediction
from forerun.diffusion.hooks import Handle, StepTracker, Wrapper, sample_argument
from forerun.diffusion.pipelines import denoiser_of
from forerun.diffusion.settings import WHOLE_RUN, DriftBound, StepInterval, Window
from forerun.errors import ConfigError
from forerun.options import options


@options
class CFGCacheConfig:
    """Schedule and form in which the unconditional prediction is reused.

    Args:
        interval: both halves are run at least at every `interval`-th step; 1 never reuses. `None` sets no
            such limit, and requires `drift_bound`.
        drift_bound: reuse while the conditional prediction of every sample differs from that of the last
            full step by at most this share of its norm; 0 never reuses. `None` ignores drift.
        window: range of the run in which reuse is allowed, as shares of the steps from 0 to 1.
        reuse: reuse the unconditional prediction itself, or its difference from the conditional one.
        extrapolate: extrapolate the last two full steps linearly, instead of repeating the last.
        guidance: whether the pipeline runs both halves in one call or in two; `auto` for known pipelines.
        unconditional_first: whether the unconditional half or call comes first; `None` for known pipelines.

    Raises:
        ConfigError: for values out of range, or without any schedule.
    """

    interval: StepInterval | None = None
    drift_bound: DriftBound | None = None
    window: Window = WHOLE_RUN
    reuse: Literal["difference", "unconditional"] = "difference"
    extrapolate: bool = False
    guidance: Literal["auto", "batched", "two_call"] = "auto"
    unconditional_first: bool | None = None

    def __post_init__(self) -> None:
        if self.interval is None and self.drift_bound is None:
            raise ConfigError("CFG caching needs a schedule; set interval, drift_bound or both.")


@dataclass(frozen=True)
class _Full:
    """Predictions kept from a step at which both halves were run."""

    step: int
    timestep: float
    conditional: Tensor
    kept: Tensor


class _Memory:
    """The last full steps of a run, which decide on reuse and predict the unconditional half."""

    def __init__(self, config: CFGCacheConfig, steps: StepTracker) -> None:
        self.config, self.steps = config, steps
        self.drifts: list[float] = []
        self.full: list[_Full] = []

    def may_reuse(self) -> bool:
        """True if the schedule allows this step to skip its unconditional half, apart from drift."""
        config = self.config
        if len(self.full) < 1 + config.extrapolate or config.drift_bound == 0.0:
            return False
        if not self.steps.inside(config.window):
            return False
        return config.interval is None or self.steps.step - self.full[-1].step < config.interval

    def within_bound(self, conditional: Tensor) -> bool:
        """True if the conditional prediction of every sample has drifted within the bound.

        Drift is measured since the last full step.
        """
        if self.config.drift_bound is None:
            return True
        last = self.full[-1].conditional.flatten(1)
        apart = (conditional.flatten(1) - last).norm(dim=1)
        drift = float((apart / last.norm(dim=1).clamp_min(1e-12)).max())
        self.drifts.append(drift)
        return drift <= self.config.drift_bound

    def remember(self, conditional: Tensor, unconditional: Tensor) -> None:
        """Keep a full step; the one before it stays for extrapolation."""
        kept = unconditional
        if self.config.reuse == "difference":
            kept = unconditional - conditional
        full = _Full(self.steps.step, self.steps.timestep, conditional.clone(), kept.clone())
        self.full = [*self.full[-1:], full]

    def unconditional(self, conditional: Tensor | None) -> Tensor:
        """The replacement for the unconditional prediction of this step."""
        last = self.full[-1]
        kept = last.kept
        if self.config.extrapolate:
            before = self.full[-2]
            ahead = (self.steps.timestep - last.timestep) / (last.timestep - before.timestep)
            kept = torch.lerp(before.kept, last.kept, 1.0 + ahead)
        if self.config.reuse == "unconditional":
            return kept
        assert conditional is not None
        return conditional + kept


class CFGCache(Handle):
    """A CFG cache on a pipeline, with counters over all sampling runs since it was applied.

    `full_steps` counts the steps with both halves, `reused_steps` the steps with one.
    """

    def __init__(self, pipeline: Any, config: CFGCacheConfig) -> None:
        super().__init__()
        self.config = config
        self.full_steps = self.reused_steps = 0
        self._pipeline = pipeline
        self._halves = Halves.of(pipeline, config.guidance, config.unconditional_first)
        two_call = self._halves.two_call
        self._check_order()
        # State of a two-call step: prediction of the first call, and whether the other half is replaced.
        self._first: Tensor | None = None
        self._reusing = False
        self._shape: torch.Size | None = None
        # An output of an unconditional call; replaced outputs have the same form.
        self._template: Any = None
        # State of a run: whether the halves of a batched step are run one by one.
        self._apart: bool | None = None
        self._steps = StepTracker(pipeline, self._reset, 2 if two_call else 1)
        self._memory = _Memory(config, self._steps)
        call = self._two_calls if two_call else self._one_call
        self._wrappers = [Wrapper(denoiser_of(pipeline), "forward", call), self._steps.wrapper]

    @property
    def drifts(self) -> list[float]:
        """Drift of the conditional prediction at each step where it was measured, the largest of a batch."""
        return self._memory.drifts

    @property
    def evaluations(self) -> int:
        """Number of halves that were run; without the cache, two per step."""
        return 2 * self.full_steps + self.reused_steps

    @property
    def factor(self) -> float:
        """Evaluations without the cache / evaluations with it, from 1 to 2."""
        steps = self.full_steps + self.reused_steps
        return 2 * steps / self.evaluations if steps else 1.0

    def _check_order(self) -> None:
        late = self._halves.two_call and self._halves.unconditional_first
        if late and (self.config.drift_bound is not None or self.config.reuse == "difference"):
            raise ConfigError(
                "this pipeline runs its unconditional call first, before the drift and the difference are "
                "known; use an interval with reuse='unconditional'."
            )

    def _reset(self) -> None:
        self._memory.full.clear()
        self._first = self._shape = self._template = self._apart = None
        self._reusing = False

    def _observe(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        shape = sample_argument(args, kwargs).shape
        if self._shape is not None and shape != self._shape:
            self._steps.reset()
        self._steps.observe(args, kwargs)
        self._shape = shape

    def _one_call(self, inner: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a step of a pipeline that passes both halves in one batch."""
        self._observe(args, kwargs)
        self._halves.check_batched(self._pipeline, sample_argument(args, kwargs))
        if self._apart is None:
            self._apart = self._halves.apart(denoiser_of(self._pipeline))
        apart = self._apart
        if not self._memory.may_reuse() and not apart:
            output = inner(*args, **kwargs)
            first, second = prediction_of(output).chunk(2)
            pair = (second, first) if self._halves.unconditional_first else (first, second)
            self._remember(*pair)
            return output

        def half(conditional: bool) -> Any:
            half_args, half_kwargs = self._halves.split(args, kwargs, conditional)
            if not apart:
                return inner(*half_args, **half_kwargs)
            name = "conditional" if conditional else "unconditional"
            with denoiser_of(self._pipeline).cache_context(name):
                return inner(*half_args, **half_kwargs)

        output = half(conditional=True)
        conditional = prediction_of(output)
        if self._memory.may_reuse() and self._memory.within_bound(conditional):
            self.reused_steps += 1
            return self._halves.join(output, self._memory.unconditional(conditional))
        unconditional = prediction_of(half(conditional=False))
        self._remember(conditional, unconditional)
        return self._halves.join(output, unconditional)

    def _two_calls(self, inner: Any, *args: Any, **kwargs: Any) -> Any:
        """Run one of the two calls of a step."""
        self._observe(args, kwargs)
        is_first = self._steps.call == 0
        is_unconditional = is_first == self._halves.unconditional_first
        if is_first:
            self._check_pair()
            self._reusing = self._memory.may_reuse()
        if is_unconditional and self._reusing:
            # If this is the second call, the conditional prediction is known and may have drifted too far.
            if is_first or self._memory.within_bound(self._known()):
                prediction = self._memory.unconditional(None if is_first else self._known())
                self.reused_steps += 1
                self._first = prediction if is_first else None
                return with_prediction(self._template, prediction)
            self._reusing = False
        output = inner(*args, **kwargs)
        if is_unconditional:
            self._template = output
        if is_first:
            self._first = prediction_of(output)
            return output
        if not self._reusing:
            pair = (self._known(), prediction_of(output))
            self._remember(*(pair if is_unconditional else reversed(pair)))
        self._first = None
        return output

    def _known(self) -> Tensor:
        """The prediction of the first call of this step."""
        assert self._first is not None
        return self._first

    def _check_pair(self) -> None:
        if self._first is not None:
            raise ConfigError(
                "the pipeline called its denoiser once in a step, so it runs without guidance; use a "
                "guidance_scale above 1 or remove the CFG cache."
            )

    def _remember(self, conditional: Tensor, unconditional: Tensor) -> None:
        self.full_steps += 1
        self._memory.remember(conditional, unconditional)


def apply_cfg_cache(pipeline: Any, config: CFGCacheConfig) -> CFGCache:
    """Let a pipeline reuse its unconditional predictions, until the returned handle is removed.

    Raises:
        ConfigError: for a pipeline without guidance, of an unknown class, or with an order of calls that
            the schedule does not allow; also while sampling, if guidance is off.
        UnsupportedModelError: for a pipeline without a denoiser.
    """
    return CFGCache(pipeline, config)
