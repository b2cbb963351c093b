"""Milliseconds of a forward over its tokens, by engine: drawn from what `forerun.bench.cpu` saved.

python -m forerun.bench.plot report.json docs/benchmarks
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forerun.errors import ConfigError

MARKERS = {"forerun": "o", "llama.cpp": "s", "openvino": "^", "transformers": "D"}


def draw(curves: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """One picture a model and precision; returns their files.

    Raises:
        ConfigError: where matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plots need matplotlib; run: pip install 'forerun[plot]'.") from None
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for model, precision in dict.fromkeys((one["model"], one["precision"]) for one in curves):
        mine = [one for one in curves if (one["model"], one["precision"]) == (model, precision)]
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.subplots()
        _fill(axes, mine)
        axes.set_title(f"{model}, {precision}: one forward, all logits")
        files.append(folder / f"forward-{model}-{precision}.svg")
        # Without a date the file is a function of the figures alone.
        figure.savefig(files[-1], metadata={"Date": None})
    return files


def _fill(axes: Any, curves: Sequence[dict[str, Any]]) -> None:
    tokens = sorted({one["n"] for one in curves})
    for engine in dict.fromkeys(one["engine"] for one in curves):
        points = sorted(
            (one["n"], one["milliseconds"]) for one in curves if one["engine"] == engine
        )
        axes.plot(*zip(*points, strict=True), marker=MARKERS.get(engine, "x"), label=engine)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(tokens, [str(n) for n in tokens])
    axes.set_xlabel("tokens of the forward")
    axes.set_ylabel("milliseconds")
    axes.grid(alpha=0.3, which="both")
    axes.legend()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m forerun.bench.plot")
    parser.add_argument("report", type=Path, help="what --json of forerun.bench.cpu wrote")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    report = json.loads(options.report.read_text(encoding="utf-8"))
    for file in draw(report["curves"], options.folder):
        print(file)


if __name__ == "__main__":
    main()
