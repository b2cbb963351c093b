"""Plot of the acceptance length over a training, by category, as one self-contained SVG."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import ceil
from pathlib import Path

Curve = Sequence[tuple[int, Mapping[str, float]]]
"""Points of a curve: tokens trained on, and the acceptance length by category at that point."""

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 48, 190, 44, 44
# Least vertical distance of labels; labels closer than this are moved apart.
LEAST_APART = 15
COLORS = ("#1971c2", "#d9480f", "#2f9e44", "#9c36b5", "#e8590c", "#0c8599", "#c2255c", "#5f3dc4")
STYLE = """text { font: 12px system-ui, sans-serif; fill: #495057 }
.title { font-size: 15px; font-weight: 600; fill: #212529 } .grid { stroke: #dee2e6 }
polyline { fill: none; stroke-width: 2 } .mean { stroke: #212529; stroke-width: 4 } .name { font-weight: 600 }
@media (prefers-color-scheme: dark) { text { fill: #ced4da } .title { fill: #f8f9fa }
.grid { stroke: #495057 } .mean { stroke: #f8f9fa } }"""
MEAN = "mean"


def read_curve(log: Path, untrained: Mapping[str, float]) -> list[tuple[int, dict[str, float]]]:
    """Read the validations of a training from its log, starting with the untrained drafter.

    Args:
        log: file written by `Trainer.log`; a missing file counts as empty.
        untrained: acceptance lengths before the first step.
    """
    points = [(0, dict(untrained))] if untrained else []
    lines = log.read_text("utf-8").splitlines() if log.exists() else []
    for line in lines:
        # Ignore a line that was cut off.
        with suppress(ValueError):
            row = json.loads(line)
            if "lengths" in row:
                points.append((row["tokens"], row["lengths"]))
    return points


@dataclass(frozen=True)
class _Axes:
    """Mapping from tokens and lengths to places in the plot.

    Args:
        most_tokens: number of tokens at the right end.
        highest: length at the top, a multiple of a half.
    """

    most_tokens: int
    highest: float

    @classmethod
    def over(cls, lines: Mapping[str, Sequence[tuple[int, float]]]) -> _Axes:
        """Axes with room for all lines."""
        points = [point for own in lines.values() for point in own]
        highest = max((length for _, length in points), default=1.0)
        tokens = max((tokens for tokens, _ in points), default=0)
        return cls(tokens or 1, max(1.5, ceil(2 * highest) / 2))

    def x(self, tokens: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * tokens / self.most_tokens

    def y(self, length: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (length - 1) / (self.highest - 1)

    def parts(self) -> list[str]:
        """SVG elements of the horizontal grid lines and the numbers on both axes."""
        made = []
        for half in range(2, round(2 * self.highest) + 1):
            at = self.y(half / 2)
            made += [
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>',
                f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{half / 2:.1f}</text>',
            ]
        for quarter in range(5):
            tokens = self.most_tokens * quarter / 4
            place = f'x="{self.x(tokens):.1f}" y="{HEIGHT - 24}"'
            made.append(f'<text {place} text-anchor="middle">{_short(tokens)}</text>')
        return [*made, f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}">tokens</text>']


def draw(curve: Curve, title: str) -> str:
    """Draw a line for each category, and a thick line for their mean, as SVG."""
    lines = _lines(curve)
    axes = _Axes.over(lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="12" y="24">{escape(title)}</text>',
        *axes.parts(),
    ]
    ends = _apart({name: axes.y(own[-1][1]) for name, own in lines.items()})
    for index, (name, own) in enumerate(lines.items()):
        points = " ".join(f"{axes.x(tokens):.1f},{axes.y(length):.1f}" for tokens, length in own)
        line = f'stroke="{COLORS[index % len(COLORS)]}"'
        line, label = ('class="mean"', 'class="name"') if name == MEAN else (line, 'class="other"')
        parts += [
            f'<polyline {line} points="{points}"/>',
            f'<text {label} x="{WIDTH - RIGHT + 8}" y="{ends[name] + 4:.1f}">'
            f"{escape(name)} {own[-1][1]:.2f}</text>",
        ]
    return "\n".join([*parts, "</svg>", ""])


def _lines(curve: Curve) -> dict[str, list[tuple[int, float]]]:
    """Points of each category, and of their mean."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for tokens, lengths in curve:
        mean = sum(lengths.values()) / len(lengths) if lengths else 1.0
        for name, length in {**lengths, MEAN: mean}.items():
            lines.setdefault(name, []).append((tokens, length))
    return lines


def _short(tokens: float) -> str:
    """A number of tokens in short form, such as 1.5 M."""
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if tokens >= unit:
            return f"{tokens / unit:.3g}{name}"
    return f"{tokens:.0f}"


def _apart(heights: dict[str, float]) -> dict[str, float]:
    """Heights of labels moved down where two are too close, and up again where they leave the plot."""
    names = sorted(heights, key=heights.__getitem__)
    for upper, lower in pairwise(names):
        heights[lower] = max(heights[lower], heights[upper] + LEAST_APART)
    lowest = float(HEIGHT - LEAST_APART)
    for name in reversed(names):
        heights[name] = min(heights[name], lowest)
        lowest = heights[name] - LEAST_APART
    return heights
