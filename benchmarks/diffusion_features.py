"""Feature caching: operations and PSNR by interval, alone and below a CFG cache.

``python -m benchmarks.diffusion_features --out docs/benchmarks/diffusion-features.json``
"""

from __future__ import annotations

import argparse
import contextlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.diffusion_models import Task, set_threads, shipped
from forerun.diffusion.cfg_cache import CFGCacheConfig, apply_cfg_cache
from forerun.diffusion.feature_cache import FeatureCacheConfig, apply_feature_cache
from forerun.diffusion.pipelines import open_pipeline
from forerun.diffusion.quality import psnr
from forerun.files import write_text

INTERVALS = (1, 2, 3, 4, 6)
GATED = CFGCacheConfig(drift_bound=0.25, extrapolate=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", type=Path, default=shipped("images"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    set_threads(options.threads)
    pipeline = open_pipeline(options.pipeline)
    task = Task(options.count, options.steps)
    reference, full = task.counted(pipeline, flops=True)
    rows: list[dict[str, Any]] = []
    for guidance in (None, GATED):
        for interval in INTERVALS:
            with contextlib.ExitStack() as applied:
                if guidance is not None:
                    applied.enter_context(apply_cfg_cache(pipeline, guidance))
                applied.enter_context(apply_feature_cache(pipeline, FeatureCacheConfig(interval)))
                images, counted = task.counted(pipeline, flops=True)
            rows.append(
                {
                    "interval": interval,
                    "cfg_cache": None if guidance is None else asdict(guidance),
                    "operations": full.flops / counted.flops,
                    "psnr": asdict(psnr(images, reference)),
                }
            )
            print(rows[-1], flush=True)
    write_text(options.out, json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
