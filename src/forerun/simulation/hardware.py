"""Hardware and models of a plan: turns options into costs of rounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from forerun.costs.forwards import RooflineCosts
from forerun.costs.hardware import GB, TFLOPS, Hardware, find_hardware
from forerun.costs.rounds import FREE, Costs, RoundCosts
from forerun.costs.shapes import find_shape
from forerun.errors import ConfigError
from forerun.simulation.request import HardwareOptions, SimulateRequest


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


def set_up(request: SimulateRequest) -> Setup:
    """Compute the costs of target and draft.

    Raises:
        ConfigError, UnknownNameError: as `plan`.
    """
    assert request.target is not None
    machine = request.machine
    target = RooflineCosts(
        find_shape(request.target),
        hardware_of(machine),
        "bf16" if request.dtype == "auto" else request.dtype,
        None if request.cache_dtype == "auto" else request.cache_dtype,
        overhead=machine.overhead / 1e3,
        num_devices=machine.num_devices,
        parallel_efficiency=machine.parallel_efficiency,
    )
    drafting: Costs | float = request.cost_ratio[0] if request.cost_ratio else 0.0
    draft = None
    if request.draft_window is not None:
        drafting = WindowedCosts(target, request.draft_window)
    elif request.draft is not None and request.draft.lower() != "none":
        precision = target.precision if request.draft_dtype == "auto" else request.draft_dtype
        drafting = draft = replace(target, shape=find_shape(request.draft), precision=precision)
    return Setup(target, draft, RoundCosts.of_models(target, drafting))


def hardware_of(machine: HardwareOptions) -> Hardware:
    """The named device, with given limits in place of its own.

    Raises:
        ConfigError: without a name and both limits.
        UnknownNameError: for a name that is not known.
    """
    own: dict[str, Any] = {}
    if machine.bandwidth is not None:
        own["bandwidth"] = machine.bandwidth * GB
    if machine.flops is not None:
        own |= dict.fromkeys(("fp16", "fp32", "fp8"), machine.flops * TFLOPS)
    if machine.memory is not None:
        own["capacity"] = machine.memory * GB
    if machine.hardware is not None:
        return replace(find_hardware(machine.hardware), **own)
    for name in ("bandwidth", "flops"):
        if getattr(machine, name) is None:
            raise ConfigError(f"your own hardware needs --{name}; add it, or name a --hardware.")
    return Hardware("your own", **own)
