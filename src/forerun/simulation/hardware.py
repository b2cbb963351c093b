"""Hardware and models of a plan: turns options into costs of rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from forerun.costs.forwards import RooflineCosts
from forerun.costs.hardware import GB, TFLOPS, Hardware, find_hardware
from forerun.costs.rounds import FREE, Costs, RoundCosts
from forerun.costs.shapes import SHAPES, ModelShape, find_shape
from forerun.errors import ConfigError

# Batch sizes up to at least this number are searched for those at which speculation loses.
REQUESTS = 1024


@dataclass(frozen=True)
class Request:
    """Settings of a plan, named like the options."""

    hardware: str | None
    bandwidth: float | None
    flops: float | None
    memory: float | None
    num_devices: int
    parallel_efficiency: float
    overhead: float
    target: str
    draft: str
    cost_ratio: float | None
    dtype: str
    draft_dtype: str
    cache_dtype: str
    acceptance: Sequence[float]
    lengths: Sequence[int]
    batch: Sequence[int]
    context: Sequence[int]
    draft_window: int | None = None

    @property
    def most_requests(self) -> int:
        """The largest batch size in the search for those at which speculation loses."""
        return max(REQUESTS, *self.batch)


@dataclass(frozen=True)
class WindowedCosts:
    """Costs of forwards that read only a window of their context, as in drafting by self_sparse.

    Args:
        whole: costs of forwards that read the whole context.
        window: most tokens of context that a forward reads.
    """

    whole: Costs
    window: int

    def seconds(self, num_tokens: ArrayLike, batch_size: ArrayLike, context: ArrayLike) -> Any:
        """Seconds of a forward; see `Costs.seconds`."""
        return self.whole.seconds(num_tokens, batch_size, np.minimum(context, self.window))


@dataclass(frozen=True)
class Setup:
    """Costs of target and draft on the hardware; no draft if it is free or given by its cost ratio."""

    target: RooflineCosts
    draft: RooflineCosts | None
    rounds: RoundCosts

    @property
    def free_drafts(self) -> bool:
        """True if drafting is assumed to cost nothing, so that speed-ups are upper bounds."""
        return self.rounds.draft is FREE

    def memory_bytes(self, batch_size: int, context: int) -> float:
        """Bytes of weights and caches."""
        models = [self.target] if self.draft is None else [self.target, self.draft]
        return sum(
            model.weight_bytes + float(model.traffic.cache_bytes(batch_size, context))
            for model in models
        )

    def fits(self, batch_size: int, context: int) -> bool | None:
        """True if weights and caches fit into memory; None if the memory's size is not known."""
        capacity = self.target.capacity
        return None if capacity is None else self.memory_bytes(batch_size, context) <= capacity


def set_up(request: Request, find: Callable[[str], ModelShape] = find_shape) -> Setup:
    """Compute the costs of target and draft.

    Args:
        find: function from a model's name to its dimensions.

    Raises:
        ConfigError, UnknownNameError: as `plan`.
    """
    device = hardware_of(request)
    target = RooflineCosts(
        find(request.target),
        device,
        "bf16" if request.dtype == "auto" else request.dtype,
        None if request.cache_dtype == "auto" else request.cache_dtype,
        overhead=request.overhead / 1e3,
        num_devices=request.num_devices,
        parallel_efficiency=request.parallel_efficiency,
    )
    if request.draft_window is not None:
        return Setup(
            target, None, RoundCosts.of_models(target, WindowedCosts(target, request.draft_window))
        )
    if request.draft.lower() == "none":
        return Setup(target, None, RoundCosts.of_models(target, request.cost_ratio or 0.0))
    precision = target.precision if request.draft_dtype == "auto" else request.draft_dtype
    draft = replace(target, shape=find(request.draft), precision=precision)
    return Setup(target, draft, RoundCosts.of_models(target, draft))


def hardware_of(request: Request) -> Hardware:
    """The named device, with given limits in place of its own.

    Raises:
        ConfigError: without a name and both limits.
    """
    own: dict[str, Any] = {}
    if request.bandwidth is not None:
        own["bandwidth"] = request.bandwidth * GB
    if request.flops is not None:
        own |= dict.fromkeys(("fp16", "fp32", "fp8"), request.flops * TFLOPS)
    if request.memory is not None:
        own["capacity"] = request.memory * GB
    if request.hardware is not None:
        return replace(find_hardware(request.hardware), **own)
    for name in ("bandwidth", "flops"):
        if getattr(request, name) is None:
            raise ConfigError(f"your own hardware needs --{name}; add it, or name a --hardware.")
    return Hardware("your own", **own)


def known_models() -> str:
    """Names of the known models, as text for messages."""
    return ", ".join(sorted(SHAPES))
