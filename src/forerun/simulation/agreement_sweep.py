"""Sweep of acceptance and speed-up over the agreement of draft and target, on random rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import binomtest

from forerun.simulation.agreement import acceptance_of_agreement
from forerun.simulation.report import (
    Cell,
    Curves,
    Line,
    Result,
    Row,
    Table,
    interval_text,
    long_table,
    settings_of,
    speedup_cell,
)
from forerun.simulation.sweep import LEVEL
from forerun.theory.formulas import speedup

ROUNDS = 1000


@dataclass(frozen=True)
class Request:
    """Settings named like the options; `rounds` pairs of rows are drawn per agreement."""

    agreement: Sequence[float]
    cost_ratio: Sequence[float]
    lengths: Sequence[int]
    rounds: int


def sweep_agreement(request: Request) -> Result:
    """Compute a row for every agreement and cost ratio, with the best of the lengths."""
    rows = [row for agreement in request.agreement for row in _rows(request, agreement)]
    return Result(
        settings_of(request) | {"level": LEVEL}, rows, [_table(rows)], [_chart(request, rows)]
    )


def _rows(request: Request, agreement: float) -> list[dict[str, Any]]:
    measured, expected = acceptance_of_agreement(agreement, request.rounds)
    # Wilson's interval is meaningful even if all tokens or none were accepted.
    count = round(measured * request.rounds)
    interval = binomtest(count, request.rounds).proportion_ci(LEVEL, method="wilson")
    rows = []
    for ratio in request.cost_ratio:
        gains = np.asarray(speedup(expected, np.array(request.lengths), ratio))
        best = int(gains.argmax())
        rows.append(
            {
                "agreement": agreement,
                "acceptance": measured,
                "interval": [float(interval.low), float(interval.high)],
                "expected_acceptance": expected,
                "cost_ratio": ratio,
                "length": request.lengths[best],
                "speedup": float(gains[best]),
                "pays": bool(gains[best] > 1.0),
            }
        )
    return rows


def _table(rows: list[dict[str, Any]]) -> Table:
    columns: dict[str, Callable[[Row], Cell | str]] = {
        "agreement": lambda row: f"{row['agreement']:g}",
        "acceptance": lambda row: f"{row['acceptance']:.3f}",
        f"{LEVEL:.0%} interval": lambda row: interval_text(row["interval"], digits=3),
        "1 - total variation": lambda row: f"{row['expected_acceptance']:.3f}",
        "cost ratio": lambda row: f"{row['cost_ratio']:g}",
        "best length": lambda row: str(row["length"]),
        "speed-up": lambda row: speedup_cell(row["speedup"]),
    }
    return long_table("Acceptance by agreement of the logits", columns, rows, ["agreement"])


def _chart(request: Request, rows: list[dict[str, Any]]) -> Curves:
    lines = {}
    for ratio in request.cost_ratio:
        chosen = [row for row in rows if row["cost_ratio"] == ratio]
        lines[f"cost ratio {ratio:g}"] = Line(
            [row["agreement"] for row in chosen], [row["speedup"] for row in chosen]
        )
    return Curves("Speed-up at the best length", "agreement of the logits", {"": lines})
