"""Sweep of the speed-up over length, acceptance and cost ratio, by formulas and by simulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from forerun.report.chart import Curves, HeatMap, Line
from forerun.report.result import Result
from forerun.report.table import Cell, Row, Table, interval_text, long_table, speedup_cell
from forerun.simulation.independent import simulate_independent
from forerun.simulation.request import SimulateRequest
from forerun.theory.adaptive import AdaptiveLength
from forerun.theory.formulas import expected_tokens, speedup

LEVEL = 0.95
# Rounds if only the adaptive length is simulated; its interval is then about 0.01 wide.
ADAPTIVE_ROUNDS = 10_000
MAP_POINTS = 101


def sweep(request: SimulateRequest) -> Result:
    """Compute a row for every acceptance, cost ratio and length."""
    rows = [
        row
        for acceptance in request.acceptance
        for ratio in request.cost_ratio
        for row in _rows(request, acceptance, ratio)
    ]
    table = _wide_table(request, rows) if request.rounds is None else _long_table(rows)
    return Result("sweep", {"level": LEVEL}, rows, [table], charts(request))


def _rows(request: SimulateRequest, acceptance: float, ratio: float) -> list[dict[str, Any]]:
    gains = np.asarray(speedup(acceptance, np.array(request.lengths), ratio)).tolist()
    best = gains.index(max(gains))
    rows = []
    for index, (length, gain) in enumerate(zip(request.lengths, gains, strict=True)):
        row: dict[str, Any] = {
            "acceptance": acceptance,
            "cost_ratio": ratio,
            "policy": "fixed",
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
    if request.policy == "adaptive":
        drawn = _simulated(request, acceptance, ratio, AdaptiveLength())
        gain = drawn["simulated_speedup"]
        setting = {"acceptance": acceptance, "cost_ratio": ratio, "policy": "adaptive"}
        rows.append(setting | drawn | {"cost_per_token": 1.0 / gain, "pays": gain > 1.0})
    return rows


def _simulated(
    request: SimulateRequest, acceptance: float, ratio: float, length: int | AdaptiveLength
) -> dict[str, Any]:
    # The random numbers of a setting do not depend on the other settings.
    key = 0 if isinstance(length, AdaptiveLength) else length
    bits = np.array([acceptance, ratio]).view(np.uint32)
    rng = np.random.default_rng([request.seed, key, *bits.tolist()])
    rounds = request.rounds or ADAPTIVE_ROUNDS
    outcome = simulate_independent(acceptance, length, ratio, rounds, rng)
    drawn = {
        "simulated_tokens_per_round": outcome.tokens.value,
        "simulated_speedup": outcome.speedup.value,
        "interval": list(outcome.speedup.interval(LEVEL)),
    }
    return drawn | ({"length": outcome.mean_length} if key == 0 else {})


def _wide_table(request: SimulateRequest, rows: list[dict[str, Any]]) -> Table:
    """A table with lengths below each other and acceptances side by side."""
    cells: dict[tuple[float, str, float], Cell] = {}
    for row in rows:
        if row["policy"] == "adaptive":
            low, high = row["interval"]
            line, cell = "adaptive", speedup_cell(row["simulated_speedup"])
            cell = cell._replace(tail=f"±{(high - low) / 2:.2f}")
        else:
            line, cell = str(row["length"]), speedup_cell(row["speedup"], row["best"])
        cells[row["cost_ratio"], line, row["acceptance"]] = cell
    lines = [*map(str, request.lengths), *(["adaptive"] if request.policy == "adaptive" else [])]
    groups = [
        [
            [Cell(f"{ratio:g}"), Cell(line), *(cells[ratio, line, a] for a in request.acceptance)]
            for line in lines
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
        "length": length_text,
        "tokens a round": lambda row: f"{row['simulated_tokens_per_round']:.2f}",
        "cost a token": lambda row: f"{row['cost_per_token']:.3f}",
        "formula": lambda row: (
            "" if "best" not in row else speedup_cell(row["speedup"], row["best"])
        ),
        "simulated": lambda row: speedup_cell(row["simulated_speedup"]),
        f"{LEVEL:.0%} interval": lambda row: interval_text(row["interval"]),
    }
    return long_table("Speed-up over plain decoding", columns, rows, ["acceptance", "cost_ratio"])


def length_text(row: Row) -> str:
    """The length of a row as text; the mean for the adaptive length."""
    length = row["length"]
    return f"adaptive {length:.1f}" if row["policy"] == "adaptive" else str(length)


def charts(request: SimulateRequest) -> list[Curves | HeatMap]:
    """Charts of the speed-up by length, and at the best length by acceptance and cost ratio."""
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
    curves = Curves("Speed-up over length", "tokens drafted a round", panels)
    return [curves, best_map(lengths, max(1.0, *request.cost_ratio))]


def best_map(lengths: np.ndarray, highest_ratio: float) -> HeatMap:
    """A map of the speed-up at the best of some lengths, over acceptance and cost ratio."""
    acceptance = np.linspace(0.0, 1.0, MAP_POINTS)
    ratio = np.linspace(0.0, highest_ratio, MAP_POINTS)
    gains = np.asarray(speedup(acceptance[None, :, None], lengths, ratio[:, None, None]))
    return HeatMap(
        "Speed-up at the best length",
        "acceptance",
        "cost ratio",
        acceptance.tolist(),
        ratio.tolist(),
        gains.max(axis=-1).tolist(),
    )
