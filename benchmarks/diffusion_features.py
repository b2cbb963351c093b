"""Feature caching: operations, seconds and PSNR by interval, alone and below a CFG cache.

``python -m benchmarks.diffusion_features --out docs/benchmarks/diffusion-features.json``
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.diffusion_models import Task, set_threads, shipped
from forerun.diffusion.cfg_cache import apply_cfg_cache
from forerun.diffusion.feature_cache import apply_feature_cache
from forerun.diffusion.loading import open_pipeline
from forerun.diffusion.methods import psnr
from forerun.diffusion.settings import CFGCacheConfig, FeatureCacheConfig
from forerun.files import write_text
from forerun.measure.turns import in_turns

INTERVALS = (1, 2, 3, 4, 6)
GATED = CFGCacheConfig(drift_bound=0.25, extrapolate=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", type=Path, default=shipped("images"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=3, help="timed runs of each, in turns")
    options = parser.parse_args()
    set_threads(options.threads)
    pipeline = open_pipeline(options.pipeline)
    task = Task(options.count, options.steps)
    reference, full = task.counted(pipeline, flops=True)
    rows: list[dict[str, Any]] = []
    for guidance in (None, GATED):
        for interval in INTERVALS:

            @contextlib.contextmanager
            def caches(guidance: Any = guidance, interval: int = interval) -> Iterator[None]:
                with contextlib.ExitStack() as applied:
                    if guidance is not None:
                        applied.enter_context(apply_cfg_cache(pipeline, guidance))
                    features = FeatureCacheConfig(interval)
                    applied.enter_context(apply_feature_cache(pipeline, features))
                    yield

            with caches():
                images, counted = task.counted(pipeline, flops=True)
            plain = partial(task.run, pipeline)
            turns = in_turns(plain, caches()(plain), options.pairs)
            rows.append(
                {
                    "interval": interval,
                    "cfg_cache": None if guidance is None else asdict(guidance),
                    "operations": full.flops / counted.flops,
                    "seconds": (turns.ratio, turns.least, turns.most),
                    "psnr": asdict(psnr(images, reference)),
                }
            )
            print(rows[-1], flush=True)
    write_text(options.out, json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
