"""Whole forwards of 1 to 64 tokens by model and precision, beside what the machine can do at best."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from forerun.bench.forwards import Forwards, prefill_seconds
from forerun.bench.machine import TIMES_THE_CACHE, Machine
from forerun.bench.shapes import MODELS, build
from forerun.bench.traffic import forward_bytes, multiply_adds, weight_bytes
from forerun.checks import Check, normalize, one_of, several, whole
from forerun.models.cpu import CpuModel
from forerun.models.placement import KERNEL_PRECISIONS
from forerun.models.running import PREFILL_CHUNK

LONGEST = 512
MOST_CONTEXT = 1 << 17
_PREFILLS = 3

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What to measure.

    Args:
        models: names of shapes.MODELS.
        precisions: of the weights.
        tokens: of a forward; 1 is always among them, the others are compared with it.
        contexts: tokens whose keys and values are there already.
        rounds: of all of it in turns.

    Raises:
        ConfigError: for a number out of range.
        UnknownNameError: for a name that does not exist.
    """

    models: tuple[str, ...] = ("zoo", "llama-110m")
    precisions: tuple[str, ...] = ("bf16", "int8", "int4", "fp32")
    tokens: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    contexts: tuple[int, ...] = (128, 4096)
    rounds: int = 7

    def __post_init__(self) -> None:
        checks = {
            "models": several(_known("model", MODELS)),
            "precisions": several(_known("precision", KERNEL_PRECISIONS)),
            "tokens": several(whole(1, LONGEST)),
            "contexts": several(whole(0, MOST_CONTEXT)),
            "rounds": whole(1, 10_000),
        }
        normalize(self, checks)
        object.__setattr__(self, "tokens", tuple(sorted({1, *self.tokens})))


def _known(kind: str, names: Sequence[str]) -> Check:
    return lambda _, value: one_of(names)(kind, value)


@dataclass(frozen=True)
class Row:
    """Forwards of one size.

    Args:
        model, precision, n, context: which.
        bytes: of packed weights, keys and values that one reads.
        milliseconds, best_milliseconds: the median over rounds, and the best.
        gigabytes_per_second: bytes over the median.
        ratio_to_one: the median over rounds of its time over that of one token in the same round.
        share_of_bandwidth: of what reading as many bytes in the same round reaches, the median.
        share_of_peak: of the multiply-adds that the instruction does in the same round; None where
            the processor lacks it.
        from_memory: whether the bytes are four times the last-level cache.
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
    """A prompt's keys and values, without logits."""

    model: str
    precision: str
    tokens: int
    milliseconds: float
    tokens_per_second: float
    share_of_peak: float | None


@dataclass
class Result:
    """All rows, and the machine that they were measured on."""

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


def measure(request: Request, tell: Tell = lambda _: None) -> Result:
    """Measure everything that was asked for; `tell` hears what comes next."""
    result = Result(Machine())
    for name in request.models:
        for precision in request.precisions:
            tell(f"{name} {precision}")
            model = build(name, precision)
            contexts = [one for one in request.contexts if fits(model, one, request.tokens)]
            result.rows += _measure_model(model, contexts, request, result.machine)
            result.prefills.append(_measure_prefill(model, result.machine))
            del model
            gc.collect()
    return result


def fits(model: CpuModel, context: int, tokens: Sequence[int]) -> bool:
    """Whether the model takes so long a text: rows that it cannot have are left out."""
    return context + max(tokens) <= model.max_context


@dataclass
class _Round:
    """One turn of everything at one context."""

    seconds: dict[int, float]
    bandwidth: float
    peak: float | None


def _measure_model(
    model: CpuModel, contexts: Sequence[int], request: Request, machine: Machine
) -> Iterator[Row]:
    timers = {context: Forwards(model, context, max(request.tokens)) for context in contexts}
    for timer in timers.values():
        for n in request.tokens:
            timer.once(n)
    rounds: dict[int, list[_Round]] = {context: [] for context in contexts}
    for _ in range(request.rounds):
        machine.read()
        for context, timer in timers.items():
            like = forward_bytes(model, 1, context)
            bandwidth, peak = machine.read_like(like), machine.multiply(model.precision)
            seconds = {n: timer.sample(n) for n in request.tokens}
            rounds[context].append(_Round(seconds, bandwidth, peak))
    for context in contexts:
        for n in request.tokens:
            yield _row(model, n, context, rounds[context], machine)


def _row(model: CpuModel, n: int, context: int, rounds: list[_Round], machine: Machine) -> Row:
    size = forward_bytes(model, n, context)
    work = multiply_adds(model.shape, n, context, head=True)
    times = [one.seconds[n] for one in rounds]
    peaks = [work / one.seconds[n] / one.peak for one in rounds if one.peak]
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
        ratio_to_one=statistics.median(one.seconds[n] / one.seconds[1] for one in rounds),
        share_of_bandwidth=statistics.median(
            size / one.seconds[n] / one.bandwidth for one in rounds
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
