"""Forwards of models as this machine runs them, in turns with what bounds them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from forerun import _native
from forerun.bench.forwards import (
    Forwards,
    Machine,
    forward_bytes,
    multiply_adds,
    prefill_seconds,
    traffic_of,
    use_threads,
)
from forerun.bench.roofline import RooflineRequest
from forerun.bench.roofline.report import (
    DRAFT,
    TARGET,
    Forward,
    PlacedModel,
    Roofline,
    Turn,
    experts_note,
)
from forerun.contracts import CausalLM
from forerun.costs.forwards import Limits
from forerun.costs.hardware import HARDWARE, Hardware
from forerun.engine.load import ModelPair
from forerun.engine.resolve import KNOWN_DRAFTS
from forerun.errors import ConfigError
from forerun.models import Checkpoint
from forerun.models.memory import check_memory
from forerun.models.running import PREFILL_CHUNK
from forerun.progress import report

_PREFILLS = 3
# Tokens of the forward of a round that checks a usual draft.
_CHECKED = 5

LimitsNow = Callable[[CausalLM, float], Limits]
"""Function from a model and the bytes that a forward reads to the limits at this moment."""


def load_models(request: RooflineRequest) -> tuple[CausalLM, CausalLM | None]:
    """Target and draft of a request, ready to run; the known draft where none is named.

    Raises:
        ConfigError: on a CPU without the compiled kernels, which measure its limits.
        ForerunError: for a model that cannot be read or run.
    """
    placement, model = request.model.placement, request.model.model
    target = Checkpoint.open(model, request.model.revision)
    pair = ModelPair(target, target.run_config(placement))
    draft = request.draft_model or KNOWN_DRAFTS.get(model)
    if draft is not None:
        pair = pair.with_draft(
            Checkpoint.open(draft), replace(placement, dtype=request.draft_dtype)
        )
    if pair.run.device.type == "cpu":
        if not _native.AVAILABLE:
            raise ConfigError(
                f"forerun's CPU kernels, which measure the machine, are not available: {_native.REASON}."
            )
        use_threads(request.model.threads)
    capacity = min(max(request.contexts) + max(request.counts), target.summary.max_context)
    check_memory(pair.needs(1, capacity), pair.run.device)
    return target.load(pair.run), pair.load_draft() if pair.draft else None


@dataclass(frozen=True)
class TimedModel:
    """A model whose forwards are timed.

    Args:
        role: target or draft.
        model: ready to run.
        tokens: of its forwards, 1 among them.
    """

    role: str
    model: CausalLM
    tokens: Sequence[int]

    @property
    def subject(self) -> PlacedModel:
        """The model of the rows."""
        return PlacedModel(self.role, self.model.name, self.model.precision, traffic_of(self.model))

    def fitting(self, contexts: Sequence[int]) -> list[int]:
        """The contexts that the model has room for, rising."""
        longest = max(self.tokens)
        return [size for size in sorted(set(contexts)) if size + longest <= self.model.max_context]


def measure(request: RooflineRequest, target: CausalLM, draft: CausalLM | None) -> Roofline:
    """Rows of target and draft below the machine's limits.

    Raises:
        ConfigError: on a device whose limits are not known; for contexts that the target has no
            room for.
    """
    timed = [TimedModel(TARGET, target, request.counts)]
    timed += [] if draft is None else [TimedModel(DRAFT, draft, [1])]
    fitting = timed[0].fitting(request.contexts)
    if not fitting:
        raise ConfigError(
            f"{target.name} takes {target.max_context} tokens, fewer than any of the contexts with "
            f"{max(request.counts)} more; give smaller --contexts or --tokens."
        )
    if target.device.type == "cpu":
        machine = Machine()
        # The kernels hold torch to one thread, which a model on torch should not be.
        torch.set_num_threads(use_threads(None))
        name, limits_now = "this machine", limits_of(machine)
        facts: dict[str, Any] = {"last_level_cache_bytes": machine.cache}
    else:
        device = _device_of(target)
        name, limits_now, facts = device.name, published(device), {"device": asdict(device)}
    rows = time_forwards(timed, request.contexts, request.rounds, limits_now)
    context = min((row.context for row in rows if row.role == DRAFT), default=None)
    in_round = None
    if draft is not None and context is not None:
        in_round = draft_in_round(draft, target, request.rounds, context)
    missing = [size for size in request.contexts if size not in fitting]
    notes = experts_note(traffic_of(target).shape, request.counts)
    notes += [f"{target.name} has no room for a context of {size} tokens." for size in missing]
    return Roofline(name, rows, facts, in_round, notes)


def limits_of(machine: Machine) -> LimitsNow:
    """Limits measured whenever they are asked for; where the processor lacks the instruction, the peak is
    that of a prefill of the model."""
    reached: dict[int, float] = {}

    def now(model: CausalLM, count: float) -> Limits:
        rate = machine.multiply(model.precision)
        if rate is None and id(model) not in reached:
            tokens = min(PREFILL_CHUNK, model.max_context)
            work = multiply_adds(model, tokens, 0, head=False)
            reached[id(model)] = work / min(
                prefill_seconds(model, tokens) for _ in range(_PREFILLS)
            )
        return Limits(machine.read_like(int(count)), 2 * (rate or reached[id(model)]))

    return now


def published(device: Hardware) -> LimitsNow:
    """Limits of a device as its maker publishes them."""
    return lambda model, _: Limits(device.bandwidth, device.peak(model.precision))


def _device_of(model: CausalLM) -> Hardware:
    on_cuda = model.device.type == "cuda"
    return hardware_called(
        torch.cuda.get_device_name(model.device) if on_cuda else str(model.device)
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
        f"the limits of {name} are not known; `forerun simulate --bandwidth --flops` takes any."
    )


def time_forwards(
    models: Sequence[TimedModel], contexts: Sequence[int], num_turns: int, limits_now: LimitsNow
) -> list[Forward]:
    """Rows of all models at all contexts that they have room for, timed in turns."""
    timers = [
        (timed, context, Forwards(timed.model, context, max(timed.tokens)))
        for timed in models
        for context in timed.fitting(contexts)
    ]
    for timed, _, timer in timers:
        for n in timed.tokens:
            timer.once(n)
    turns: list[list[Turn]] = [[] for _ in timers]
    for turn in range(num_turns):
        for index, (timed, context, timer) in enumerate(timers):
            report("forwards", turn * len(timers) + index, num_turns * len(timers))
            limits = limits_now(timed.model, forward_bytes(timed.model, 1, context))
            turns[index].append(_turn(timer, timed.tokens, limits))
    report("forwards", 1, 1)
    rows = []
    for (timed, context, _), taken in zip(timers, turns, strict=True):
        limits = Limits(
            statistics.median(turn.limits.bandwidth for turn in taken),
            statistics.median(turn.limits.peak for turn in taken),
        )
        rows += [timed.subject.row(n, context, limits, taken) for n in timed.tokens]
    return rows


def _turn(timer: Forwards, tokens: Sequence[int], limits: Limits) -> Turn:
    pairs = {n: timer.pairs(n) for n in tokens if n > 1} or {1: timer.pairs(1)}
    seconds = {n: statistics.median(many for _, many in taken) for n, taken in pairs.items()}
    seconds[1] = statistics.median(single for taken in pairs.values() for single, _ in taken)
    ratios = {
        n: statistics.median(many / single for single, many in taken) for n, taken in pairs.items()
    }
    return Turn(seconds, ratios | {1: 1.0}, limits)


def draft_in_round(draft: CausalLM, target: CausalLM, num_turns: int, context: int) -> float:
    """Seconds of a token of the draft right after the target has run, the median."""
    ours, theirs = Forwards(draft, context, 1), Forwards(target, context, _CHECKED)
    times = []
    # The first turn finds everything new.
    for _ in range(num_turns + 1):
        theirs.once(_CHECKED)
        times.append(ours.once(1))
    return statistics.median(times[1:])
