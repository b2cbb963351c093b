"""Memory and time of loading and running a model in this process, which must be fresh.

python -m forerun.bench.footprint zoo bf16 2
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter

from forerun.bench.machine import use_threads
from forerun.bench.shapes import build
from forerun.engine.engine import Engine
from forerun.engine.load import load
from forerun.models.cpu import CpuModel
from forerun.models.loading import load_config
from forerun.models.zoo import is_zoo, zoo_path
from forerun.params import SamplingParams

CONTEXT = 1024
PROMPT, OUTPUT = 600, 64


def measure(name: str, precision: str, threads: int) -> dict[str, float]:
    """Bytes beyond weights and cache at the peak of loading, a prompt and some tokens; seconds to load."""
    use_threads(threads)
    # transformers imports most of itself when a first config is read: that is no part of loading.
    load_config(zoo_path())
    before = _status("VmRSS")
    started = perf_counter()
    engine = _load(name, precision)
    loaded = perf_counter() - started
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True)
    engine.generate([[1 + index % 100 for index in range(PROMPT)]], params)
    peak = _status("VmHWM")
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
    # Without a tokenizer there is no more to load.
    return Engine(build(name, precision), max_context=CONTEXT)


def _status(key: str) -> int:
    """Bytes by the name that Linux has for them."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"/proc/self/status has no {key}")


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
