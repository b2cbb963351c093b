"""Memory and time of loading and running a model in this process, which must be a fresh one.

python -m benchmarks.footprint zoo bf16 2
"""

from __future__ import annotations

import argparse
import json
import resource
from collections.abc import Sequence
from time import perf_counter

import psutil

from benchmarks.shapes import build
from forerun.bench.forwards import use_threads
from forerun.engine.engine import Engine
from forerun.engine.load import load
from forerun.models.checkpoint import Checkpoint
from forerun.models.cpu import CpuModel
from forerun.models.zoo import is_zoo
from forerun.params import SamplingParams

CONTEXT = 1024
PROMPT, OUTPUT = 600, 64


def measure(name: str, precision: str, threads: int) -> dict[str, float]:
    """Peak bytes beyond weights and cache while loading and generating; seconds to load."""
    use_threads(threads)
    # transformers imports most of itself when it reads a first config; that does not count as loading.
    Checkpoint.open("zoo")
    before = psutil.Process().memory_info().rss
    started = perf_counter()
    engine = _load(name, precision)
    loaded = perf_counter() - started
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True)
    engine.generate([[1 + index % 100 for index in range(PROMPT)]], params)
    # Linux counts kilobytes.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert isinstance(engine.target, CpuModel)
    weights = engine.target.weight_bytes
    cache = engine.target.new_cache(1, CONTEXT).nbytes
    return {
        "before_bytes": before,
        "peak_bytes": peak,
        "weight_bytes": weights,
        "cache_bytes": cache,
        "extra_bytes": peak - before - weights - cache,
        "load_seconds": loaded,
    }


def _load(name: str, precision: str) -> Engine:
    if is_zoo(name):
        return load(name, False, dtype=precision, device="cpu", max_context=CONTEXT)
    # Random weights have no tokenizer.
    return Engine(build(name, precision), max_context=CONTEXT)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="zoo, a file, or a shape of benchmarks.shapes")
    parser.add_argument("precision", help="fp32, bf16, int8 or int4")
    parser.add_argument("threads", type=int)
    given = parser.parse_args(arguments)
    print(json.dumps(measure(given.name, given.precision, given.threads)))


if __name__ == "__main__":
    main()
