"""Plain decoding by the precision of the cache, and the memory that a filled cache takes.

python -m benchmarks.cache_precisions

Random weights and filled caches, one model; single tokens run in turns with bf16, from which the first turn
is not counted. Beside each ratio stands the largest that reading allows: the bytes of a token with bf16
over those with the other cache. Memory is what the process grows by when a cache is made and filled.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence

import psutil

from benchmarks.shapes import build
from forerun.bench.forwards import Forwards, forward_bytes, use_threads
from forerun.models.cpu import CpuModel
from forerun.models.cpu.cache import CpuCache
from forerun.models.run_config import with_kv_dtype

DTYPES = ("bf16", "int8", "int4")


def rows(model: CpuModel, contexts: Sequence[int], turns: int) -> Iterator[str]:
    """Lines for people."""
    for context in contexts:
        timers, reads = {}, {}
        for dtype in DTYPES:
            target, before = with_kv_dtype(model, dtype), resident()
            timers[dtype] = Forwards(target, context, 1)
            timers[dtype].once(1)
            reads[dtype] = forward_bytes(target, 1, context)
            nbytes, grown = cache_bytes(timers[dtype]), resident() - before
            yield f"context {context}, {dtype}: {nbytes / 1e6:.0f} MB, {grown / nbytes:.3f} resident"
        seconds: dict[str, list[float]] = {dtype: [] for dtype in DTYPES}
        for turn in range(turns + 1):
            for dtype, timer in timers.items():
                timer.once(1)
                taken = timer.once(1)
                if turn:
                    seconds[dtype].append(taken)
        for dtype in DTYPES[1:]:
            ratios = [a / b for a, b in zip(seconds["bf16"], seconds[dtype], strict=True)]
            yield (
                f"context {context}, {dtype} over bf16: {statistics.median(ratios):.2f} "
                f"({min(ratios):.2f}-{max(ratios):.2f}), at most {reads['bf16'] / reads[dtype]:.2f}; bf16 "
                f"{1e3 * statistics.median(seconds['bf16']):.1f} ms a token"
            )


def cache_bytes(timer: Forwards) -> int:
    """Bytes of a cache of the kernels, as computed."""
    assert isinstance(timer.cache, CpuCache)
    return timer.cache.nbytes


def resident() -> int:
    """Bytes that the process has in memory."""
    return int(psutil.Process().memory_info().rss)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cache_precisions")
    parser.add_argument("--model", default="llama-350m", help="a shape of forerun roofline")
    parser.add_argument("--precision", default="int8", help="of the weights")
    parser.add_argument("--contexts", type=int, nargs="+", default=[7168, 14336])
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args(arguments)
    use_threads(options.threads)
    for line in rows(build(options.model, options.precision), options.contexts, options.turns):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
