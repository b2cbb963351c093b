"""Forwards of models as this machine runs them, in turns with what bounds them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forerun.bench.forwards import (
    Forwards,
    forward_bytes,
    multiply_adds,
    prefill_seconds,
    traffic_of,
)
from forerun.bench.machine import Machine, instruction
from forerun.bench.roofline.result import Forward, InCache, Prefill, Subject, Turn
from forerun.contracts import CausalLM
from forerun.costs.forwards import Limits
from forerun.models.running import PREFILL_CHUNK
from forerun.progress import report

_PREFILLS = 3
# The forward of a round that checks a usual draft.
_CHECKED = 5

LimitsNow = Callable[[CausalLM, float], Limits]
"""Function from a model and the bytes that a forward reads to the limits at this moment."""


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
    def subject(self) -> Subject:
        """Subject of the model's rows."""
        return Subject(self.role, self.model.name, self.model.precision, traffic_of(self.model))

    def fitting(self, contexts: Sequence[int]) -> list[int]:
        """The contexts that the model has room for, rising."""
        longest = max(self.tokens)
        return [size for size in sorted(set(contexts)) if size + longest <= self.model.max_context]


def limits_of(machine: Machine) -> LimitsNow:
    """Limits that are measured when they are asked for. Where the processor lacks the instruction, the
    peak is what a prefill of the model reaches."""
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
    peaks: dict[str, list[float]] = {}
    for (timed, _, _), taken in zip(timers, turns, strict=True):
        name = instruction(timed.model.precision)
        peaks.setdefault(name, []).extend(turn.limits.peak for turn in taken)
    rows = []
    for (timed, context, _), taken in zip(timers, turns, strict=True):
        limits = Limits(
            statistics.median(turn.limits.bandwidth for turn in taken),
            statistics.median(peaks[instruction(timed.model.precision)]),
        )
        rows += [timed.subject.row(n, context, limits, taken) for n in timed.tokens]
    return rows


def _turn(timer: Forwards, tokens: Sequence[int], limits: Limits) -> Turn:
    pairs = {n: timer.pairs(n) for n in tokens if n > 1} or {1: timer.pairs(1)}
    seconds = {n: statistics.median(many for _, many in taken) for n, taken in pairs.items()}
    seconds[1] = statistics.median(one for taken in pairs.values() for one, _ in taken)
    ratios = {n: statistics.median(many / one for one, many in taken) for n, taken in pairs.items()}
    return Turn(seconds, ratios | {1: 1.0}, limits)


def time_prefill(model: CausalLM, limits_now: LimitsNow) -> Prefill:
    """A prefill of one chunk."""
    tokens = min(PREFILL_CHUNK, model.max_context)
    work = 2 * multiply_adds(model, tokens, 0, head=False)
    read = forward_bytes(model, tokens, 0)
    prefill_seconds(model, tokens)
    times, shares = [], []
    for _ in range(_PREFILLS):
        peak = limits_now(model, read).peak
        times.append(prefill_seconds(model, tokens))
        shares.append(work / times[-1] / peak)
    median = statistics.median(times)
    share = statistics.median(shares)
    return Prefill(tokens, median, tokens / median, work / read, work / median, share)


def reads_by_source(machine: Machine, num_turns: int) -> dict[str, float]:
    """Bytes a second from each cache and from memory: of a working set in the middle between what the
    cache before holds and what this one does."""
    found, below = {}, 0
    for name, most in machine.sources().items():
        size = int((below * most) ** 0.5) if below else most // 2
        count = machine.stream_bytes if most == machine.stream_bytes else size
        found[name] = statistics.median(machine.read_like(count) for _ in range(num_turns))
        below = most
    return found


def measure_in_cache(
    draft: CausalLM, target: CausalLM, machine: Machine, num_turns: int, context: int
) -> InCache:
    """A token of the draft after another one, after the target has run, and from memory."""
    ours, theirs = Forwards(draft, context, 1), Forwards(target, context, _CHECKED)
    read = forward_bytes(draft, 1, context)
    cached, behind, cold, near, far = [], [], [], [], []
    for turn in range(num_turns + 1):
        report("the draft in the cache", turn, num_turns + 1)
        near.append(machine.read_like(int(read)))
        cached.append(ours.sample(1))
        theirs.once(_CHECKED)
        behind.append(ours.once(1))
        far.append(machine.read())
        cold.append(ours.once(1))
    report("the draft in the cache", 1, 1)
    # The first turn finds everything new.
    near_rate, far_rate, warm, after, from_far = (
        statistics.median(values[1:]) for values in (near, far, cached, behind, cold)
    )
    return InCache(
        bytes=read,
        cache_bytes=machine.cache,
        stays=read <= machine.cache / 2,
        cached_bandwidth=near_rate,
        memory_bandwidth=far_rate,
        cached_seconds=warm,
        memory_seconds=from_far,
        in_round_seconds=after,
    )
