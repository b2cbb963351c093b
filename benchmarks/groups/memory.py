"""Group 5: memory beyond weights and cache, and the zoo's loading time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.checkpoints import write_checkpoint
from benchmarks.groups.report import Figure, Setting
from benchmarks.shapes import RANDOM_SHAPES

GROUP = 5
EXTRA_MB = 64
LOAD_SECONDS = 1.0
TIMES = 3


def run(setting: Setting) -> Iterator[Figure]:
    """Figures of fresh processes."""
    names = ("zoo", "llama-110m") if setting.quick else ("zoo", "llama-350m", "qwen3-0.6b")
    for name in names:
        for precision in ("bf16", "int8"):
            setting.progress(f"5: {name} {precision}")
            runs = [_fresh(setting, name, precision) for _ in range(TIMES)]
            worst = max(run["extra_bytes"] for run in runs)
            sizes = [runs[0][key] / 1e6 for key in ("weight_bytes", "cache_bytes")]
            yield Figure(
                GROUP,
                f"{name} {precision}: peak beyond weights and cache",
                worst / 1e6,
                EXTRA_MB,
                at_most=True,
                unit="MB",
                detail=f"{sizes[0]:.0f} MB of weights, {sizes[1]:.0f} MB of cache",
            )
            if name == "zoo":
                loads = sorted(run["load_seconds"] for run in runs)
                yield Figure(
                    GROUP,
                    f"{name} {precision}: loading after import",
                    loads[1],
                    LOAD_SECONDS,
                    at_most=True,
                    unit="s",
                    detail=f"{loads[0]:.2f} to {loads[-1]:.2f} s in {TIMES} fresh processes",
                )


def _fresh(setting: Setting, name: str, precision: str) -> dict[str, float]:
    # From files, as users load: random weights would take memory of their own.
    model = str(write_checkpoint(name, setting.work / name)) if name in RANDOM_SHAPES else name
    program = [sys.executable, "-m", "benchmarks.footprint", model, precision]
    done = subprocess.run(
        [*program, str(setting.threads)], capture_output=True, text=True, check=True
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures
