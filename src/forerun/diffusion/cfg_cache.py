"""Classifier-free guidance with the unconditional prediction reused between steps. Approximate.

Guidance runs the denoiser twice per step, with and without the condition. The difference of the two
predictions changes slowly, so it can be reused for some steps. With both runs at every k-th step only,
2k/(k+1) times fewer evaluations remain. An *error-gated* schedule instead watches the conditional
prediction, which is computed at every step anyway. Both runs are repeated once it has drifted further than
a bound set by the user.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forerun.diffusion.hooks import Handle, StepTracker, Wrapper, sample_argument
from forerun.diffusion.pipelines import denoiser_of, is_guided
from forerun.diffusion.settings import CFGCacheConfig
from forerun.errors import ConfigError

# By pipeline class: whether it calls the denoiser twice per step, and whether the unconditional half comes
# first. Read from diffusers 0.42.
_KNOWN = {
    "StableDiffusionPipeline": (False, True),
    "StableDiffusionXLPipeline": (False, True),
    "StableDiffusion3Pipeline": (False, True),
    "AnimateDiffPipeline": (False, True),
    "CogVideoXPipeline": (False, True),
    "LattePipeline": (False, True),
    "PixArtAlphaPipeline": (False, True),
    "DiTPipeline": (False, False),
    "WanPipeline": (True, False),
}
# Arguments that all samples share, whatever their first dimension.
_SHARED = {"image_rotary_emb", "img_ids", "txt_ids"}


@dataclass(frozen=True)
class _Full:
    """Prediction kept from a step at which both halves were run, and the other's difference from it."""

    step: int
    timestep: float
    conditional: Tensor
    difference: Tensor


class _Memory:
    """The last full steps of a run, which decide on reuse and predict the unconditional half."""

    def __init__(self, config: CFGCacheConfig, steps: StepTracker) -> None:
        self.config, self.steps = config, steps
        self.drifts: list[float] = []
        self.full: list[_Full] = []

    def may_reuse(self) -> bool:
        """True if the schedule allows this step to skip its unconditional half, apart from drift."""
        config = self.config
        if len(self.full) < 1 + config.extrapolate or config.bound == 0.0:
            return False
        return config.interval is None or self.steps.step - self.full[-1].step < config.interval

    def within_bound(self, conditional: Tensor) -> bool:
        """True if the conditional prediction of every sample has drifted within the bound.

        Drift is measured since the last full step.
        """
        bound = self.config.bound
        if bound is None:
            return True
        last = self.full[-1].conditional.flatten(1)
        apart = (conditional.flatten(1) - last).norm(dim=1)
        drift = float((apart / last.norm(dim=1).clamp_min(1e-12)).max())
        self.drifts.append(drift)
        return drift <= bound

    def remember(self, conditional: Tensor, unconditional: Tensor) -> None:
        """Keep a full step; the one before it stays for extrapolation."""
        difference = unconditional - conditional
        full = _Full(self.steps.step, self.steps.timestep, conditional.clone(), difference)
        self.full = [*self.full[-1:], full]

    def unconditional(self, conditional: Tensor) -> Tensor:
        """The replacement for the unconditional prediction of this step."""
        last = self.full[-1]
        if not self.config.extrapolate:
            return conditional + last.difference
        before = self.full[-2]
        ahead = (self.steps.timestep - last.timestep) / (last.timestep - before.timestep)
        return conditional + torch.lerp(before.difference, last.difference, 1.0 + ahead)


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
        # Conditional prediction of a two-call step between its calls.
        self._conditional: Tensor | None = None
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

    def _reset(self) -> None:
        self._memory.full.clear()
        self._conditional = self._shape = self._template = self._apart = None

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
        """Run one of the two calls of a step, of which the conditional one comes first."""
        self._observe(args, kwargs)
        if self._steps.call == 0:
            if self._conditional is not None:
                raise ConfigError(
                    "the pipeline called its denoiser once in a step, so it runs without guidance; use a "
                    "guidance_scale above 1 or remove the CFG cache."
                )
            output = inner(*args, **kwargs)
            self._conditional = prediction_of(output)
            return output
        conditional, self._conditional = self._conditional, None
        assert conditional is not None
        if self._memory.may_reuse() and self._memory.within_bound(conditional):
            self.reused_steps += 1
            return with_prediction(self._template, self._memory.unconditional(conditional))
        output = self._template = inner(*args, **kwargs)
        self._remember(conditional, prediction_of(output))
        return output

    def _remember(self, conditional: Tensor, unconditional: Tensor) -> None:
        self.full_steps += 1
        self._memory.remember(conditional, unconditional)


@dataclass(frozen=True)
class Halves:
    """The way a pipeline runs both halves of guidance.

    Args:
        two_call: True for two calls of the denoiser, False for one call with twice the batch.
        unconditional_first: True if the unconditional half comes first; of two calls never.
    """

    two_call: bool
    unconditional_first: bool

    @classmethod
    def of(cls, pipeline: Any, guidance: str, unconditional_first: bool | None) -> Halves:
        """The halves of a pipeline, as given by the caller or known for the pipeline's class.

        Raises:
            ConfigError: for a pipeline without guidance, of an unknown class, or that makes its
                unconditional call first.
        """
        if not is_guided(pipeline):
            raise ConfigError(
                f"{type(pipeline).__name__} has no classifier-free guidance; there is nothing to cache."
            )
        # A subclass with its own loop may run guidance differently.
        loop = next(base for base in type(pipeline).__mro__ if "__call__" in vars(base))
        known = _KNOWN.get(loop.__name__)
        described = guidance != "auto" and unconditional_first is not None
        if known is None and not described:
            raise ConfigError(
                f"how {type(pipeline).__name__} runs its guidance is not known; "
                "set guidance ('batched' or 'two_call') and unconditional_first."
            )
        two_call, first = known or (False, False)
        two_call = two_call if guidance == "auto" else guidance == "two_call"
        first = first if unconditional_first is None else unconditional_first
        if two_call and first:
            raise ConfigError(
                f"{type(pipeline).__name__} runs its unconditional call first, before it is known what can "
                "replace it; a CFG cache needs the conditional one first, or both in one."
            )
        return cls(two_call, first)

    def check_batched(self, pipeline: Any, samples: Tensor) -> None:
        """Check that a call holds both halves.

        Raises:
            ConfigError: if the pipeline runs without guidance.
        """
        guided = getattr(pipeline, "do_classifier_free_guidance", None)
        if guided is None:
            half = len(samples) // 2
            guided = len(samples) % 2 == 0 and torch.equal(samples[:half], samples[half:])
        if not guided:
            raise ConfigError(
                "the pipeline runs without guidance; use a guidance_scale above 1 or remove the CFG cache."
            )

    def apart(self, denoiser: Any) -> bool:
        """True if a batched call must run its halves one by one.

        That is so if a cache of diffusers on the denoiser keeps a state for each `cache_context`. A half
        alone would otherwise read the state of both.

        Raises:
            ConfigError: for a cache that keeps one state for the whole batch.
        """
        caches = [hook for module in denoiser.modules() for hook in _stateful_hooks(module)]
        for cache in caches:
            if not (hasattr(cache, "state_manager") and hasattr(denoiser, "cache_context")):
                raise ConfigError(
                    f"a cache of the denoiser ({type(cache).__name__}) keeps one state for both halves of "
                    "guidance, and a CFG cache runs one alone; remove one of the two."
                )
        return bool(caches)

    def split(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], conditional: bool
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of a batched call, cut to one half."""
        batch = len(sample_argument(args, kwargs))
        first = conditional != self.unconditional_first

        def half(value: Any) -> Any:
            if isinstance(value, Tensor) and value.ndim and len(value) % batch == 0 and len(value):
                middle = len(value) // 2
                return value[:middle] if first else value[middle:]
            if isinstance(value, dict):
                return {key: half(inside) for key, inside in value.items()}
            if isinstance(value, (list, tuple)):
                return type(value)(half(inside) for inside in value)
            return value

        halved = {key: value if key in _SHARED else half(value) for key, value in kwargs.items()}
        return tuple(half(value) for value in args), halved

    def join(self, conditional: Any, unconditional: Tensor) -> Any:
        """Output of a batched call, from the conditional half's output and the other's prediction."""
        mine = prediction_of(conditional)
        order = (unconditional, mine) if self.unconditional_first else (mine, unconditional)
        return with_prediction(conditional, torch.cat(order))


def _stateful_hooks(module: Any) -> list[Any]:
    """Hooks of diffusers on a module that keep state from call to call."""
    registry = getattr(module, "_diffusers_hook", None)
    hooks = () if registry is None else registry.hooks.values()
    return [hook for hook in hooks if hook._is_stateful]


def prediction_of(output: Any) -> Tensor:
    """The prediction `[B, ...]` in a denoiser's output."""
    predicted = output[0]
    assert isinstance(predicted, Tensor)
    return predicted


def with_prediction(output: Any, prediction: Tensor) -> Any:
    """A denoiser's output with another prediction."""
    if isinstance(output, tuple):
        return (prediction, *output[1:])
    return type(output)(sample=prediction)


def apply_cfg_cache(pipeline: Any, config: CFGCacheConfig) -> CFGCache:
    """Let a pipeline reuse its unconditional predictions, until the returned handle is removed.

    Raises:
        ConfigError: for a pipeline without guidance, of an unknown class, or that makes its unconditional
            call first; also while sampling, if guidance is off.
        UnsupportedModelError: for a pipeline without a denoiser.
    """
    return CFGCache(pipeline, config)
