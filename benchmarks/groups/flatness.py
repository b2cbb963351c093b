"""Group 2: many tokens cost hardly more than one, and prefill runs near the instruction's limit."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from itertools import product

from benchmarks.checkpoints import write_checkpoint
from benchmarks.groups.report import Figure, Setting, local, spread
from benchmarks.shapes import build
from forerun.bench.forwards import Machine, use_threads
from forerun.bench.roofline.measured import TimedModel, limits_of, time_forwards
from forerun.bench.roofline.report import TARGET, Forward

GROUP = 2
SHORT, LONG = 128, 4096
GOALS = {"bf16": {8: 1.2, 16: 1.4}, "int8": {8: 1.35, 16: 1.6}}
MORE_AT_LONG = 0.15
PREFILL_SHARE = 0.6
PREFILL_TOKENS = 512
PEERS = ("llama.cpp", "openvino", "transformers")
TOKENS = (1, 2, 4, 8, 16, 32, 64)


def run(setting: Setting) -> Iterator[Figure]:
    """Figures of all models, precisions and contexts; fills the curves of the plot."""
    models = ("llama-110m",) if setting.quick else ("llama-110m", "llama-350m")
    use_threads(setting.threads)
    limits_now, rows = limits_of(Machine()), {}
    for model, precision in product(models, GOALS):
        setting.progress(f"2: {model} {precision}")
        timed = [TimedModel(TARGET, build(model, precision), (1, 8, 16))]
        for row in time_forwards(timed, (SHORT, LONG), setting.pick(15, 5), limits_now):
            rows[row.model, row.precision, row.n, row.context] = row
    for model in models:
        for precision, goals in GOALS.items():
            for n, goal in goals.items():
                yield from _flat(rows, model, precision, n, goal)
        for precision in GOALS:
            yield _prefill(setting, model, precision)
    _fill_curves(setting, models[-1])


def _flat(
    rows: Mapping[tuple[str, str, int, int], Forward],
    model: str,
    precision: str,
    n: int,
    goal: float,
) -> Iterator[Figure]:
    short, long = (rows[model, precision, n, context] for context in (SHORT, LONG))
    single = rows[model, precision, 1, SHORT]
    yield Figure(
        GROUP,
        f"{model} {precision}: {n} tokens over 1",
        short.ratio,
        goal,
        at_most=True,
        detail=f"{1e3 * short.seconds:.2f} and {1e3 * single.seconds:.2f} ms",
    )
    yield Figure(
        GROUP,
        f"{model} {precision}: the same at context {LONG}, more by",
        long.ratio - short.ratio,
        MORE_AT_LONG,
        at_most=True,
        detail=f"{long.ratio:.2f} x, {1e3 * long.seconds:.2f} ms",
    )


def _prefill(setting: Setting, model: str, precision: str) -> Figure:
    setting.progress(f"2: prefill of {model} {precision}")
    shares, peaks, rates = [], [], []
    with (
        setting.ours(model, precision) as ours,
        local("matrices", "benchmarks.matrices:Matrices", threads=setting.threads) as matrices,
    ):
        for turn in range(setting.pick(7, 3) + 1):
            product = matrices.call("matrix_product", precision=precision)
            rate = ours.call("prefill_rate", tokens=PREFILL_TOKENS)
            if turn:
                rates.append(rate["tokens"])
                shares.append(rate["multiply_adds"] / product)
                peaks.append(rate["multiply_adds"] / (rate["peak"] or float("inf")))
    return Figure(
        GROUP,
        f"{model} {precision}: prefill over a large matrix product",
        statistics.median(shares),
        PREFILL_SHARE,
        unit="",
        detail=f"{statistics.median(rates):.0f} tokens/s, {statistics.median(peaks):.0%} of the "
        f"instruction's peak, {spread(shares)}",
    )


def _fill_curves(setting: Setting, model: str) -> None:
    """Milliseconds over tokens of every engine, in turns."""
    directory = str(write_checkpoint(model, setting.work / model))
    for precision in GOALS:
        engines = {"forerun": setting.ours(directory, precision)}
        engines |= setting.peers(PEERS, directory, precision)
        setting.progress(f"2: milliseconds over tokens, {model} {precision}")
        times: dict[tuple[str, int], list[float]] = {}
        for turn in range(setting.pick(9, 3) + 1):
            for n in TOKENS:
                for name, engine in engines.items():
                    # The first forward of a turn finds the weights of others in the cache.
                    engine.call("forward_seconds", n=n, context=SHORT)
                    seconds = engine.call("forward_seconds", n=n, context=SHORT)
                    if turn:
                        times.setdefault((name, n), []).append(seconds)
        for engine in engines.values():
            engine.close()
        setting.curves += [
            {
                "engine": name,
                "model": model,
                "precision": precision,
                "n": n,
                "milliseconds": 1e3 * statistics.median(seconds),
            }
            for (name, n), seconds in times.items()
        ]
