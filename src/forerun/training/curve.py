"""Plot of the acceptance length over a training, by category, as one self-contained SVG."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from forerun.report.chart import Curves, Line
from forerun.report.svg import image

Curve = Sequence[tuple[int, Mapping[str, float]]]
"""Points of a curve: tokens trained on, and the acceptance length by category at that point."""

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


def draw(curve: Curve, title: str) -> str:
    """Draw a line for each category, and one for their mean, as SVG."""
    points: dict[str, list[tuple[int, float]]] = {}
    for tokens, lengths in curve or [(0, {})]:
        mean = sum(lengths.values()) / len(lengths) if lengths else 1.0
        for name, length in {MEAN: mean, **lengths}.items():
            points.setdefault(name, []).append((tokens, length))
    lines = {
        f"{name} {own[-1][1]:.2f}": Line(
            [tokens for tokens, _ in own], [length for _, length in own], plain=name == MEAN
        )
        for name, own in points.items()
    }
    return image(Curves(title, "tokens", {"": lines}, y_label="acceptance length", lowest=1.0))
