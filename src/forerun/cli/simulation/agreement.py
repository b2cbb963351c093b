"""How far a draft must agree with its target: the mock rows of the NumPy tutorial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from forerun.cli.simulation.result import (
    Cell,
    Curves,
    Result,
    Table,
    interval_text,
    speedup_cell,
)
from forerun.cli.simulation.sweep import LEVEL
from forerun.theory.agreement import acceptance_of_agreement
from forerun.theory.formulas import speedup

ROUNDS = 1000


@dataclass(frozen=True)
class Request:
    """What to measure: `rounds` pairs of rows an agreement, and the speed-up that follows."""

    agreement: Sequence[float]
    cost_ratio: Sequence[float]
    lengths: Sequence[int]
    rounds: int


def sweep_agreement(request: Request) -> Result:
    """Rows for every agreement and cost ratio, with the best of the lengths."""
    rows = [row for agreement in request.agreement for row in _rows(request, agreement)]
    settings = {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(request).items()}
    return Result(settings | {"level": LEVEL}, rows, [_table(rows)], [_chart(request, rows)])


def _rows(request: Request, agreement: float) -> list[dict[str, Any]]:
    measured, expected = acceptance_of_agreement(agreement, request.rounds)
    interval = wilson(measured, request.rounds)
    rows = []
    for ratio in request.cost_ratio:
        gains = np.asarray(speedup(expected, np.array(request.lengths), ratio))
        best = int(gains.argmax())
        rows.append(
            {
                "agreement": agreement,
                "acceptance": measured,
                "interval": list(interval),
                "expected_acceptance": expected,
                "cost_ratio": ratio,
                "length": request.lengths[best],
                "speedup": float(gains[best]),
                "pays": bool(gains[best] > 1.0),
            }
        )
    return rows


def wilson(share: float, count: int) -> tuple[float, float]:
    """Where the probability behind a share of `count` trials lies, also where it is 0 or 1.

    Wilson: Probable inference, Journal of the American Statistical Association 22, 1927.
    """
    z = NormalDist().inv_cdf(0.5 + LEVEL / 2.0)
    middle = (share + z * z / (2.0 * count)) / (1.0 + z * z / count)
    half = math.sqrt(share * (1.0 - share) / count + (z / (2.0 * count)) ** 2)
    half *= z / (1.0 + z * z / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def _table(rows: list[dict[str, Any]]) -> Table:
    groups: dict[float, list[list[Cell]]] = {}
    for row in rows:
        groups.setdefault(row["agreement"], []).append(
            [
                Cell(f"{row['agreement']:g}"),
                Cell(f"{row['acceptance']:.3f}"),
                Cell(interval_text(row["interval"], digits=3)),
                Cell(f"{row['expected_acceptance']:.3f}"),
                Cell(f"{row['cost_ratio']:g}"),
                Cell(str(row["length"])),
                speedup_cell(row["speedup"]),
            ]
        )
    header = (
        "agreement",
        "acceptance",
        f"{LEVEL:.0%} interval",
        "1 - total variation",
        "cost ratio",
        "best length",
        "speed-up",
    )
    return Table("Acceptance by agreement of the logits", header, list(groups.values()))


def _chart(request: Request, rows: list[dict[str, Any]]) -> Curves:
    lines = {}
    for ratio in request.cost_ratio:
        chosen = [row for row in rows if row["cost_ratio"] == ratio]
        lines[f"cost ratio {ratio:g}"] = (
            [row["agreement"] for row in chosen],
            [row["speedup"] for row in chosen],
        )
    return Curves("Speed-up at the best length", "agreement of the logits", lines)
