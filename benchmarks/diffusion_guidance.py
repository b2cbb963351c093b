"""CFG caching: evaluations against PSNR for every schedule, and seconds, paired, for some.

``python -m benchmarks.diffusion_guidance --out docs/benchmarks/diffusion-guidance.json``
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.diffusion_models import Task, set_threads, shipped
from forerun.diffusion.cfg_cache import apply_cfg_cache
from forerun.diffusion.loading import open_pipeline
from forerun.diffusion.methods import psnr
from forerun.diffusion.settings import CFGCacheConfig
from forerun.files import write_text
from forerun.measure.turns import in_turns

INTERVALS = (2, 3, 4, 5, 6, 8, 12)
BOUNDS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)


@dataclass(frozen=True)
class Row:
    """A schedule, how many times fewer evaluations it takes, and how near it stays to the full sampler."""

    family: str
    extrapolate: bool
    setting: str
    factor: float
    psnr: float
    low: float
    high: float


def schedules() -> list[tuple[str, str, CFGCacheConfig]]:
    """Every schedule with its family and setting."""
    found = []
    for ahead in (False, True):
        for interval in INTERVALS:
            config = CFGCacheConfig(interval=interval, extrapolate=ahead)
            found.append(("interval", f"k={interval}", config))
        for bound in BOUNDS:
            config = CFGCacheConfig(drift_bound=bound, extrapolate=ahead)
            found.append(("gated", f"bound={bound}", config))
    return found


def curve(pipeline: Any, task: Task) -> list[Row]:
    """Each schedule beside the full sampler at the same noise."""
    reference = task.run(pipeline)
    rows = []
    for family, setting, config in schedules():
        with apply_cfg_cache(pipeline, config) as cache:
            found = psnr(task.run(pipeline), reference)
        row = Row(
            family,
            config.extrapolate,
            setting,
            cache.factor,
            found.value,
            found.low,
            found.high,
        )
        print(row, flush=True)
        rows.append(row)
    return rows


def at_equal_quality(rows: list[Row]) -> list[dict[str, Any]]:
    """For each gated setting, the factor of fixed intervals of each kind at the same PSNR.

    A fixed interval's curve is interpolated between its settings, and ends at none at all: a factor of 1.
    """
    found = []
    for row in (row for row in rows if row.family == "gated"):
        beside = {}
        for ahead in (False, True):
            same = [
                other for other in rows if (other.family, other.extrapolate) == ("interval", ahead)
            ]
            same.sort(key=lambda other: other.psnr)
            beside["extrapolated" if ahead else "repeated"] = float(
                np.interp(row.psnr, [o.psnr for o in same], [o.factor for o in same], right=1.0)
            )
        found.append({**asdict(row), "intervals_at_this_psnr": beside})
    return found


def seconds(pipeline: Any, task: Task, configs: list[CFGCacheConfig], rounds: int) -> list[Any]:
    """Seconds with and without each cache, in turns, and the median of their ratios."""
    found = []
    run = partial(task.run, pipeline)
    reference = run()
    for config in configs:
        with apply_cfg_cache(pipeline, config) as cache:
            samples = run()
        turns = in_turns(run, partial(_cached, pipeline, task, config), rounds)
        found.append(
            {
                "config": asdict(config),
                "batch": task.count,
                "steps": task.steps,
                "evaluations": cache.factor,
                "psnr": asdict(psnr(samples, reference)),
                "seconds": turns.plain,
                "seconds_cached": turns.other,
                "ratio": turns.ratio,
                "ratio_low": turns.least,
                "ratio_high": turns.most,
            }
        )
        print(found[-1], flush=True)
    return found


def _cached(pipeline: Any, task: Task, config: CFGCacheConfig) -> None:
    with apply_cfg_cache(pipeline, config):
        task.run(pipeline)


def timed_configs() -> list[CFGCacheConfig]:
    """Those whose seconds are measured."""
    gated = [CFGCacheConfig(drift_bound=bound, extrapolate=True) for bound in (0.2, 0.3)]
    return [CFGCacheConfig(interval=2), *gated]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", type=Path, default=shipped("images"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--what", choices=("curve", "seconds"), default="curve")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    set_threads(options.threads)
    pipeline = open_pipeline(options.pipeline)
    task = Task(options.count, options.steps)
    if options.what == "seconds":
        result: Any = seconds(pipeline, task, timed_configs(), options.rounds)
    else:
        rows = curve(pipeline, task)
        result = {"rows": [asdict(row) for row in rows], "equal": at_equal_quality(rows)}
    write_text(options.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
