"""Draws docs/chart.svg from the first table of docs/benchmarks.md: the cost of checking several tokens.

python docs/chart.py
"""

from __future__ import annotations

import argparse
import re
from itertools import pairwise
from math import log2
from pathlib import Path

DOCS = Path(__file__).parent
CHART = DOCS / "chart.svg"
SUBTITLE = "350 M parameters in bf16, context 128, two cores of an AVX-512 server"
MOST_TOKENS = 16  # more is not drafted
WIDTH, HEIGHT = 680, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 130, 64, 44
COLORS = {
    "forerun": "#d9480f",
    "llama.cpp": "#1971c2",
    "openvino": "#2f9e44",
    "transformers": "#9c36b5",
}
NAMES = {"openvino": "OpenVINO"}
# Labels of lines that end at about the same height are moved apart.
LEAST_APART = 16
STYLE = """text { font: 13px system-ui, sans-serif; fill: #495057 }
.title { font-size: 15px; font-weight: 600; fill: #212529 } .ours { font-weight: 700 }
.grid { stroke: #dee2e6 } polyline { fill: none; stroke-width: 2 } .ours-line { stroke-width: 4 }
@media (prefers-color-scheme: dark) {
text { fill: #ced4da } .title { fill: #f8f9fa } .grid { stroke: #495057 } }"""


def read_table(page: str) -> tuple[list[int], dict[str, list[float]]]:
    """Tokens, and the milliseconds of each engine, of the first table whose header is `| engine |`."""
    table = re.search(r"^\| engine \|.*\n\|.*\n(?:\|.*\n)+", page, re.MULTILINE)
    assert table, "docs/benchmarks.md has no table of engines"
    rows = [[cell.strip() for cell in row.strip("|\n").split("|")] for row in table[0].splitlines()]
    tokens = [int(cell) for cell in rows[0][1:]]
    kept = [at for at, count in enumerate(tokens) if count <= MOST_TOKENS]
    times = {row[0]: [float(row[at + 1]) for at in kept] for row in rows[2:]}
    return [tokens[at] for at in kept], times


def render() -> str:
    """The chart."""
    tokens, times = read_table((DOCS / "benchmarks.md").read_text(encoding="utf-8"))
    step = 20
    highest = step * (1 + int(max(map(max, times.values())) // step))

    def x(count: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * log2(count) / log2(tokens[-1])

    def y(milliseconds: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * milliseconds / highest

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<style>{STYLE}</style>",
        '<text class="title" x="12" y="22">Milliseconds to check several tokens at once</text>',
        f'<text x="12" y="40">{SUBTITLE}</text>',
    ]
    for value in range(0, highest + 1, step):
        at = y(value)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{value}</text>')
    for count in tokens:
        parts.append(
            f'<text x="{x(count):.1f}" y="{HEIGHT - 22}" text-anchor="middle">{count}</text>'
        )
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 4}">tokens</text>')
    heights = _apart({name: y(values[-1]) for name, values in times.items()})
    for name, values in times.items():
        points = " ".join(
            f"{x(n):.1f},{y(value):.1f}" for n, value in zip(tokens, values, strict=True)
        )
        ours = name == "forerun"
        parts.append(
            f'<polyline class="{"ours-line" if ours else "line"}" '
            f'stroke="{COLORS[name]}" points="{points}"/>'
        )
        parts.append(
            f'<text class="{"ours" if ours else "peer"}" x="{WIDTH - RIGHT + 10}" '
            f'y="{heights[name] + 4:.1f}">{NAMES.get(name, name)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _apart(heights: dict[str, float]) -> dict[str, float]:
    """The same heights, moved down where two are too close."""
    names = sorted(heights, key=heights.__getitem__)
    for upper, lower in pairwise(names):
        heights[lower] = max(heights[lower], heights[upper] + LEAST_APART)
    return heights


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    CHART.write_text(render(), encoding="utf-8")
