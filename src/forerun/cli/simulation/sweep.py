"""Speed-up over length, acceptance and cost ratio: formulas, and simulated rounds beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.cli.simulation.result import (
    Cell,
    Curves,
    HeatMap,
    Result,
    Table,
    interval_text,
    speedup_cell,
)
from forerun.theory.adaptive import AdaptiveLength
from forerun.theory.formulas import expected_tokens, speedup
from forerun.theory.independent import simulate_independent

LEVEL = 0.95
# Where only the adaptive length is simulated: its interval is then about a hundredth wide.
ADAPTIVE_ROUNDS = 10_000
MAP_POINTS = 101


@dataclass(frozen=True)
class Request:
    """What to sweep over.

    Args:
        acceptances, cost_ratios, lengths: every combination is a row.
        rounds: to simulate a setting; None computes alone.
        seed: of the simulation.
        adaptive: whether the adaptive length is a row too.
    """

    acceptances: Sequence[float]
    cost_ratios: Sequence[float]
    lengths: Sequence[int]
    rounds: int | None
    seed: int
    adaptive: bool


def sweep(request: Request) -> Result:
    """Rows for every acceptance, cost ratio and length."""
    rows = [
        row
        for acceptance in request.acceptances
        for ratio in request.cost_ratios
        for row in _rows(request, acceptance, ratio)
    ]
    table = _wide_table(request, rows) if request.rounds is None else _long_table(rows)
    settings = {
        "acceptance": list(request.acceptances),
        "cost_ratio": list(request.cost_ratios),
        "lengths": list(request.lengths),
        "rounds": request.rounds,
        "seed": request.seed,
        "policy": "adaptive" if request.adaptive else "fixed",
        "level": LEVEL,
    }
    return Result(settings, rows, [table], charts(request))


def _rows(request: Request, acceptance: float, ratio: float) -> list[dict[str, Any]]:
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
    if request.adaptive:
        found = _simulated(request, acceptance, ratio, AdaptiveLength())
        gain = found["simulated_speedup"]
        setting = {"acceptance": acceptance, "cost_ratio": ratio, "policy": "adaptive"}
        rows.append(setting | found | {"cost_per_token": 1.0 / gain, "pays": gain > 1.0})
    return rows


def _simulated(
    request: Request, acceptance: float, ratio: float, length: int | AdaptiveLength
) -> dict[str, Any]:
    # A setting draws its own numbers, whatever else is swept over.
    key = 0 if isinstance(length, AdaptiveLength) else length
    bits = np.array([acceptance, ratio]).view(np.uint32)
    rng = np.random.default_rng([request.seed, key, *bits.tolist()])
    rounds = request.rounds or ADAPTIVE_ROUNDS
    found = simulate_independent(acceptance, length, ratio, rounds, rng)
    drawn = {
        "simulated_tokens_per_round": found.tokens.value,
        "simulated_speedup": found.speedup.value,
        "interval": list(found.speedup.interval(LEVEL)),
    }
    # How far the adaptive rule went is part of its outcome.
    return drawn | ({"length": found.mean_length} if key == 0 else {})


def _wide_table(request: Request, rows: list[dict[str, Any]]) -> Table:
    """Lengths below each other, acceptances side by side."""
    cells: dict[tuple[float, str, float], Cell] = {}
    for row in rows:
        if row["policy"] == "adaptive":
            low, high = row["interval"]
            line, cell = "adaptive", speedup_cell(row["simulated_speedup"])
            cell = cell._replace(tail=f"±{(high - low) / 2:.2f}")
        else:
            line, cell = str(row["length"]), speedup_cell(row["speedup"], row["best"])
        cells[row["cost_ratio"], line, row["acceptance"]] = cell
    lines = [*map(str, request.lengths), *(["adaptive"] if request.adaptive else [])]
    groups = [
        [
            [Cell(f"{ratio:g}"), Cell(line), *(cells[ratio, line, a] for a in request.acceptances)]
            for line in lines
        ]
        for ratio in request.cost_ratios
    ]
    header = ["cost ratio", "length", *(f"acceptance {a:g}" for a in request.acceptances)]
    return Table("Speed-up over plain decoding", header, groups)


def _long_table(rows: list[dict[str, Any]]) -> Table:
    """One line a setting, computed and simulated side by side."""
    groups: dict[tuple[float, float], list[list[Cell]]] = {}
    for row in rows:
        adaptive = row["policy"] == "adaptive"
        groups.setdefault((row["acceptance"], row["cost_ratio"]), []).append(
            [
                Cell(f"{row['acceptance']:g}"),
                Cell(f"{row['cost_ratio']:g}"),
                Cell(f"adaptive ({row['length']:.1f})" if adaptive else str(row["length"])),
                Cell(f"{row['simulated_tokens_per_round']:.2f}"),
                Cell(f"{row['cost_per_token']:.3f}"),
                Cell("") if adaptive else speedup_cell(row["speedup"], row["best"]),
                speedup_cell(row["simulated_speedup"]),
                Cell(interval_text(row["interval"])),
            ]
        )
    header = (
        "acceptance",
        "cost ratio",
        "length",
        "tokens a round",
        "cost a token",
        "formula",
        "simulated",
        f"{LEVEL:.0%} interval",
    )
    return Table("Speed-up over plain decoding", header, list(groups.values()))


def charts(request: Request) -> list[Curves | HeatMap]:
    """Speed-up over length for each acceptance, and the best over acceptance and cost ratio."""
    lengths = np.array(request.lengths)
    lines = {
        f"acceptance {acceptance:g}" + (f", cost ratio {ratio:g}" if several else ""): (
            request.lengths,
            np.asarray(speedup(acceptance, lengths, ratio)).tolist(),
        )
        for several in [len(request.cost_ratios) > 1]
        for acceptance in request.acceptances
        for ratio in request.cost_ratios
    }
    title = "Speed-up over length"
    if len(request.cost_ratios) == 1:
        title += f" at cost ratio {request.cost_ratios[0]:g}"
    curves = Curves(title, "tokens drafted a round", lines)
    return [curves, best_map(lengths, max(1.0, *request.cost_ratios))]


def best_map(lengths: np.ndarray, highest_ratio: float) -> HeatMap:
    """The speed-up of the best of these lengths; break-even is where it is one."""
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
