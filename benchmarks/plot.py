"""Charts of milliseconds per forward over its tokens, by engine, from a report of `benchmarks.cpu`.

python -m benchmarks.plot report.json docs/benchmarks
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
    """Draw a chart for each model and precision; returns the files.

    Raises:
        ConfigError: where matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plots need matplotlib; run: pip install 'forerun[plot]'.") from None
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for key in dict.fromkeys((point["model"], point["precision"]) for point in curves):
        model, precision = key
        points = [point for point in curves if (point["model"], point["precision"]) == key]
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.subplots()
        _fill(axes, points)
        axes.set_title(f"{model}, {precision}: one forward, all logits")
        files.append(folder / f"forward-{model}-{precision}.svg")
        # Without a date the file is a function of the figures alone.
        figure.savefig(files[-1], metadata={"Date": None})
    return files


def _fill(axes: Any, curves: Sequence[dict[str, Any]]) -> None:
    tokens = sorted({point["n"] for point in curves})
    for engine in dict.fromkeys(point["engine"] for point in curves):
        points = sorted(
            (point["n"], point["milliseconds"]) for point in curves if point["engine"] == engine
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
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot")
    parser.add_argument("report", type=Path, help="a file that benchmarks.cpu wrote with --json")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    report = json.loads(options.report.read_text(encoding="utf-8"))
    for file in draw(report["curves"], options.folder):
        print(file)


if __name__ == "__main__":
    main()
