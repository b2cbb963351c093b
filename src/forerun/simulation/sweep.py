"""Sweep of the speed-up over length, acceptance and cost ratio, by formulas and by simulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from forerun.report.chart import Curves, Line
from forerun.report.result import Result
from forerun.report.table import Cell, Row, Table, long_table, speedup_cell
from forerun.simulation.request import SimulateRequest
from forerun.simulation.simulator import simulate_independent
from forerun.theory.formulas import expected_tokens, speedup

LEVEL = 0.95


def sweep(request: SimulateRequest) -> Result:
    """Compute a row for every acceptance, cost ratio and length."""
    rows = [
        row
        for acceptance in request.acceptance
        for ratio in request.cost_ratio
        for row in _rows(request, acceptance, ratio)
    ]
    table = _wide_table(request, rows) if request.rounds is None else _long_table(rows)
    return Result("sweep", {"level": LEVEL}, rows, [table], [_curves(request)])


def _rows(request: SimulateRequest, acceptance: float, ratio: float) -> list[dict[str, Any]]:
    gains = np.asarray(speedup(acceptance, np.array(request.lengths), ratio)).tolist()
    best = gains.index(max(gains))
    rows = []
    for index, (length, gain) in enumerate(zip(request.lengths, gains, strict=True)):
        row: dict[str, Any] = {
            "acceptance": acceptance,
            "cost_ratio": ratio,
            "length": length,
            "tokens_per_round": expected_tokens(acceptance, length),
            "cost_per_token": 1.0 / gain,
            "speedup": gain,
            "best": index == best,
            "pays": gain > 1.0,
        }
        if request.rounds is not None:
            row |= _simulated(request, acceptance, ratio, length)
        rows.append(row)
    return rows


def _simulated(
    request: SimulateRequest, acceptance: float, ratio: float, length: int
) -> dict[str, Any]:
    assert request.rounds is not None
    # The random numbers of a setting do not depend on the other settings.
    bits = np.array([acceptance, ratio]).view(np.uint32)
    rng = np.random.default_rng([request.seed, length, *bits.tolist()])
    tokens, gain = simulate_independent(acceptance, length, ratio, request.rounds, rng)
    return {
        "simulated_tokens_per_round": tokens.value,
        "simulated_speedup": gain.value,
        "interval": list(gain.interval(LEVEL)),
    }


def _wide_table(request: SimulateRequest, rows: list[dict[str, Any]]) -> Table:
    """A table with lengths below each other and acceptances side by side."""
    cells: dict[tuple[float, int, float], Cell] = {}
    for row in rows:
        cell = speedup_cell(row["speedup"], row["best"])
        cells[row["cost_ratio"], row["length"], row["acceptance"]] = cell
    groups = [
        [
            [Cell(f"{ratio:g}"), Cell(str(n)), *(cells[ratio, n, a] for a in request.acceptance)]
            for n in request.lengths
        ]
        for ratio in request.cost_ratio
    ]
    header = ["cost ratio", "length", *(f"acceptance {a:g}" for a in request.acceptance)]
    return Table("Speed-up over plain decoding", header, groups)


def _long_table(rows: list[dict[str, Any]]) -> Table:
    """A table with a line per setting, computed and simulated speed-up side by side."""
    columns: dict[str, Callable[[Row], Cell | str]] = {
        "acceptance": lambda row: f"{row['acceptance']:g}",
        "cost ratio": lambda row: f"{row['cost_ratio']:g}",
        "length": lambda row: str(row["length"]),
        "tokens a round": lambda row: f"{row['simulated_tokens_per_round']:.2f}",
        "cost a token": lambda row: f"{row['cost_per_token']:.3f}",
        "formula": lambda row: speedup_cell(row["speedup"], row["best"]),
        "simulated": lambda row: speedup_cell(row["simulated_speedup"]),
        f"{LEVEL:.0%} interval": lambda row: "{:.2f}–{:.2f}".format(*row["interval"]),
    }
    return long_table("Speed-up over plain decoding", columns, rows, ["acceptance", "cost_ratio"])


def _curves(request: SimulateRequest) -> Curves:
    """A chart of the speed-up by length."""
    lengths = np.array(request.lengths)
    panels = {
        f"cost ratio {ratio:g}": {
            f"acceptance {acceptance:g}": Line(
                request.lengths, np.asarray(speedup(acceptance, lengths, ratio)).tolist()
            )
            for acceptance in request.acceptance
        }
        for ratio in request.cost_ratio
    }
    return Curves("Speed-up over length", "tokens drafted a round", panels)
