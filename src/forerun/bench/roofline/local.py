"""The roofline of this machine: its limits, and the forwards of models below them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch

from forerun import _native
from forerun.bench.machine import MEMORY, Machine, instruction, use_threads
from forerun.bench.roofline.measured import (
    TimedModel,
    limits_of,
    measure_in_cache,
    reads_by_source,
    time_forwards,
    time_prefill,
)
from forerun.bench.roofline.request import RooflineRequest
from forerun.bench.roofline.result import DRAFT, TARGET, Forward, Roofline
from forerun.contracts import CausalLM
from forerun.costs.forwards import Limits
from forerun.costs.hardware import HARDWARE, Hardware
from forerun.engine.load import ModelPair
from forerun.engine.resolve import KNOWN_DRAFTS
from forerun.errors import ConfigError
from forerun.models import Checkpoint
from forerun.models.memory import check_memory


@dataclass(frozen=True)
class Models:
    """Target and draft of a request, ready to run."""

    target: CausalLM
    draft: CausalLM | None

    @classmethod
    def load(cls, request: RooflineRequest) -> Models:
        """The models of a request; the known draft where none is named.

        Raises:
            ConfigError: on a CPU without the compiled kernels, which measure its limits.
            ForerunError: for a model that cannot be read or run.
        """
        placement = request.place.placement
        target = Checkpoint.open(request.model, request.place.revision)
        pair = ModelPair(target, target.run_config(placement))
        draft = request.draft_model or KNOWN_DRAFTS.get(request.model)
        if draft is not None:
            pair = pair.with_draft(
                Checkpoint.open(draft), replace(placement, dtype=request.draft_dtype)
            )
        if pair.run.device.type == "cpu":
            _ready(request.place.threads)
        capacity = max(request.contexts) + max(request.counts)
        capacity = min(capacity, target.summary.max_context)
        check_memory(pair.needs(1, capacity), pair.run.device)
        return cls(target.load(pair.run), pair.load_draft() if pair.draft else None)

    def timed(self, request: RooflineRequest) -> list[TimedModel]:
        """With the tokens of their forwards."""
        drafts = [] if self.draft is None else [TimedModel(DRAFT, self.draft, [1])]
        return [TimedModel(TARGET, self.target, request.counts), *drafts]


def _ready(threads: int | None) -> None:
    try:
        use_threads(threads)
    except ConfigError as error:
        if _native.AVAILABLE:
            raise
        raise ConfigError(
            f"{error} What they measure can also be given: --bandwidth and --flops, or --hardware."
        ) from None


def measure(request: RooflineRequest, models: Models) -> Roofline:
    """Rows of target and draft, the machine's limits, and what its cache is worth to the draft.

    Raises:
        ConfigError: on a device whose limits are not known; for contexts that the target has no
            room for.
    """
    target, timed = models.target, models.timed(request)
    fitting = timed[0].fitting(request.contexts)
    if not fitting:
        raise ConfigError(
            f"{target.name} takes {target.max_context} tokens, fewer than any of the contexts with "
            f"{max(request.counts)} more; give smaller --contexts or --tokens."
        )
    on_cpu = target.device.type == "cpu"
    roofline = _on_cpu(request, models, timed) if on_cpu else _on_device(request, timed)
    missing = [size for size in request.contexts if size not in fitting]
    notes = [f"{target.name} has no room for a context of {size} tokens." for size in missing]
    return replace(roofline, notes=notes)


def _on_cpu(request: RooflineRequest, models: Models, timed: Sequence[TimedModel]) -> Roofline:
    machine = Machine()
    # The kernels hold torch to one thread, which a model on torch should not be.
    torch.set_num_threads(use_threads(None))
    limits_now = limits_of(machine)
    rows = time_forwards(timed, request.contexts, request.rounds, limits_now)
    in_cache = None
    context = min((row.context for row in rows if row.role == DRAFT), default=None)
    if models.draft is not None and context is not None:
        in_cache = measure_in_cache(models.draft, models.target, machine, request.rounds, context)
    return Roofline(
        mode="measured",
        hardware="this machine",
        rows=rows,
        reads=reads_by_source(machine, request.rounds),
        peaks=_peaks(rows),
        facts={"caches": machine.sources(), **machine.as_dict()},
        prefill=time_prefill(models.target, limits_now),
        in_cache=in_cache,
        room=machine.cache / 2,
    )


def _peaks(rows: Sequence[Forward]) -> dict[str, float]:
    """FLOP a second by the precision that is computed in."""
    return {instruction(row.precision): row.peak for row in reversed(rows)}


def _on_device(request: RooflineRequest, timed: Sequence[TimedModel]) -> Roofline:
    target = timed[0].model
    on_cuda = target.device.type == "cuda"
    device = hardware_called(
        torch.cuda.get_device_name(target.device) if on_cuda else str(target.device)
    )

    def published(model: CausalLM, _: float) -> Limits:
        return Limits(device.bandwidth, device.peak(model.precision))

    rows = time_forwards(timed, request.contexts, request.rounds, published)
    return Roofline(
        mode="measured",
        hardware=device.name,
        rows=rows,
        reads={MEMORY: device.bandwidth},
        peaks=_peaks(rows),
        facts={"device": asdict(device)},
        prefill=time_prefill(target, published),
    )


def hardware_called(name: str) -> Hardware:
    """The device with a name reported by its driver, such as `NVIDIA H100 80GB HBM3`.

    Raises:
        ConfigError: for an unknown device.
    """
    words = "-".join(name.lower().replace("-", " ").split())
    # Longest names first, because an L40S is no L4.
    for known in sorted(HARDWARE, key=len, reverse=True):
        if f"-{known}-" in f"-{words}-":
            return HARDWARE[known]
    raise ConfigError(
        f"the limits of {name} are not known; give them with --bandwidth and --flops, "
        "which measures nothing."
    )
