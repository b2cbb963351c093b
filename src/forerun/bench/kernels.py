"""Whole forwards of 1 to 64 tokens by model and precision, beside the machine's own limits."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from forerun.bench.forwards import Forwards, prefill_seconds
from forerun.bench.machine import TIMES_THE_CACHE, Machine
from forerun.bench.request import Request
from forerun.bench.shapes import build
from forerun.bench.traffic import forward_bytes, multiply_adds, weight_bytes
from forerun.models.cpu import CpuModel
from forerun.models.running import PREFILL_CHUNK
from forerun.progress import report

_PREFILLS = 3

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """Forwards of one size.

    Args:
        model, precision, n, context: of the forwards, `n` being their tokens.
        bytes: of packed weights, keys and values that a forward reads.
        milliseconds, best_milliseconds: the median over turns, and the best.
        gigabytes_per_second: bytes over the median.
        ratio_to_one: median over turns of the time over that of one token in the same turn.
        share_of_bandwidth: of the rate at which the same turn read as many bytes; the median.
        share_of_peak: of the instruction's multiply-adds in the same turn; None where the processor
            has no such instruction.
        from_memory: whether the weights are at least four times the last-level cache.
    """

    model: str
    precision: str
    n: int
    context: int
    bytes: int
    milliseconds: float
    best_milliseconds: float
    gigabytes_per_second: float
    ratio_to_one: float
    share_of_bandwidth: float
    share_of_peak: float | None
    from_memory: bool


@dataclass(frozen=True)
class Prefill:
    """The keys and values of a prompt, without logits."""

    model: str
    precision: str
    tokens: int
    milliseconds: float
    tokens_per_second: float
    share_of_peak: float | None


@dataclass
class Result:
    """All rows, and the machine."""

    machine: Machine
    rows: list[Row] = field(default_factory=list)
    prefills: list[Prefill] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "machine": self.machine.as_dict(),
            "rows": [asdict(row) for row in self.rows],
            "prefill": [asdict(row) for row in self.prefills],
        }


def measure(request: Request, progress: Progress = lambda _: None) -> Result:
    """Measure all models; `progress` is called with each before it is loaded."""
    result = Result(Machine())
    for name in dict.fromkeys(request.models):
        for precision in dict.fromkeys(request.precisions):
            progress(f"{name} {precision}")
            model = build(name, precision)
            tokens = sorted({1, *request.tokens})
            contexts = [size for size in request.contexts if fits(model, size, tokens)]
            result.rows += _measure_model(model, contexts, tokens, request.rounds, result.machine)
            result.prefills.append(_measure_prefill(model, result.machine))
            del model
            gc.collect()
    return result


def fits(model: CpuModel, context: int, tokens: Sequence[int]) -> bool:
    """Whether the model's context is large enough; other rows are left out."""
    return context + max(tokens) <= model.max_context


@dataclass
class _Turn:
    """One turn of all sizes at one context."""

    seconds: dict[int, float]
    bandwidth: float
    peak: float | None


def _measure_model(
    model: CpuModel,
    contexts: Sequence[int],
    tokens: Sequence[int],
    num_turns: int,
    machine: Machine,
) -> Iterator[Row]:
    timers = {context: Forwards(model, context, max(tokens)) for context in contexts}
    for timer in timers.values():
        for n in tokens:
            timer.once(n)
    turns: dict[int, list[_Turn]] = {context: [] for context in contexts}
    for turn in range(num_turns):
        report(f"{model.name} {model.precision}", turn, num_turns)
        machine.read()
        for context, timer in timers.items():
            bandwidth = machine.read_like(forward_bytes(model, 1, context))
            peak = machine.multiply(model.precision)
            seconds = {n: timer.sample(n) for n in tokens}
            turns[context].append(_Turn(seconds, bandwidth, peak))
    for context in contexts:
        for n in tokens:
            yield _row(model, n, context, turns[context], machine)


def _row(model: CpuModel, n: int, context: int, turns: list[_Turn], machine: Machine) -> Row:
    size = forward_bytes(model, n, context)
    work = multiply_adds(model.shape, n, context, head=True)
    times = [turn.seconds[n] for turn in turns]
    peaks = [work / turn.seconds[n] / turn.peak for turn in turns if turn.peak]
    median = statistics.median(times)
    return Row(
        model=model.name,
        precision=model.precision,
        n=n,
        context=context,
        bytes=size,
        milliseconds=1e3 * median,
        best_milliseconds=1e3 * min(times),
        gigabytes_per_second=size / median / 1e9,
        ratio_to_one=statistics.median(turn.seconds[n] / turn.seconds[1] for turn in turns),
        share_of_bandwidth=statistics.median(
            size / turn.seconds[n] / turn.bandwidth for turn in turns
        ),
        share_of_peak=statistics.median(peaks) if peaks else None,
        from_memory=weight_bytes(model) >= TIMES_THE_CACHE * machine.cache,
    )


def _measure_prefill(model: CpuModel, machine: Machine) -> Prefill:
    tokens = min(PREFILL_CHUNK, model.max_context)
    work = multiply_adds(model.shape, tokens, 0, head=False)
    prefill_seconds(model, tokens)
    times, shares = [], []
    for _ in range(_PREFILLS):
        peak = machine.multiply(model.precision)
        times.append(prefill_seconds(model, tokens))
        if peak:
            shares.append(work / times[-1] / peak)
    median = statistics.median(times)
    return Prefill(
        model.name,
        model.precision,
        tokens,
        1e3 * median,
        tokens / median,
        statistics.median(shares) if shares else None,
    )
