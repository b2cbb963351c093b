"""Simulation on a text: fits an n-gram target and draft, and decodes speculatively at every length."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from forerun import files
from forerun.errors import ConfigError
from forerun.report.chart import Curves, Line
from forerun.report.result import Result
from forerun.report.table import Cell, Row, Table, interval_text, long_table, speedup_cell
from forerun.simulation.language_models import LanguageModel, NgramModel
from forerun.simulation.request import SimulateRequest
from forerun.simulation.simulator import Simulation, speculative
from forerun.simulation.sweep import LEVEL
from forerun.theory.formulas import speedup

# Counting n-grams takes about ten times the text's size in memory, and half a second per million.
MOST_BYTES = 16 << 20
_CACHED_ROWS = 1 << 14


def read_text(file: str) -> str:
    """Read the text of a UTF-8 file, or of standard input for `-`.

    Raises:
        ConfigError: for text that cannot be read, is empty, too large, or not UTF-8.
    """
    where = "standard input" if file == "-" else f"text file {file}"
    if file == "-":
        text = files.read_stdin(ConfigError, most_bytes=MOST_BYTES)
    else:
        text = files.read_text(file, "text file", ConfigError, most_bytes=MOST_BYTES)
    if not text.strip():
        raise ConfigError(f"{where} is empty; give some text to fit the models to.")
    return text


def simulate_text(request: SimulateRequest, content: str) -> Result:
    """Compute a row for every cost ratio and length, from one run per length.

    Raises:
        ConfigError: for a text that is too short for the orders.
    """
    target = NgramModel.fit(content, request.target_order, unit=request.unit)
    draft = NgramModel.fit(
        content, request.draft_order, unit=request.unit, vocabulary=target.vocabulary
    )
    pair = (_cached(target, request.target_order), _cached(draft, request.draft_order))
    runs = {length: _run(request, pair, length) for length in request.lengths}
    rows = [
        row
        for ratio in request.cost_ratio
        for row in _mark_best([_row(length, run, ratio) for length, run in runs.items()])
    ]
    facts = {"characters": len(content), "vocab_size": target.vocab_size}
    return Result("text", {"level": LEVEL}, rows, [_table(rows)], [_chart(request, rows)], facts)


def _cached(model: NgramModel, order: int) -> LanguageModel:
    """A model with a cache of its rows."""
    row = lru_cache(maxsize=_CACHED_ROWS)(model)
    return lambda context, /: row(context[max(0, len(context) - order + 1) :])


def _run(
    request: SimulateRequest, pair: tuple[LanguageModel, LanguageModel], length: int
) -> Simulation:
    # The random numbers of a length do not depend on the other lengths.
    rng = np.random.default_rng([request.seed, length])
    return speculative(*pair, (), request.num_tokens, rng, length)


def _row(length: int, run: Simulation, ratio: float) -> dict[str, Any]:
    estimate = run.speedup(ratio)
    alpha = run.tested_acceptance
    return {
        "cost_ratio": ratio,
        "length": length,
        "acceptance": alpha,
        "acceptance_rate": run.acceptance_rate,
        "tokens_per_round": run.tokens_per_round,
        "target_calls": run.target_calls,
        "draft_calls": run.drafted,
        "cost_per_token": 1.0 / estimate.value,
        "speedup": estimate.value,
        # A single round has no spread.
        "interval": list(estimate.interval(LEVEL)) if len(run.rounds) > 1 else None,
        "formula": speedup(alpha, length, ratio),
        "pays": estimate.value > 1.0,
    }


def _mark_best(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    best = max(row["speedup"] for row in rows)
    return [row | {"best": row["speedup"] == best} for row in rows]


def _table(rows: list[dict[str, Any]]) -> Table:
    columns: dict[str, Callable[[Row], Cell | str]] = {
        "cost ratio": lambda row: f"{row['cost_ratio']:g}",
        "length": lambda row: str(row["length"]),
        "acceptance": lambda row: f"{row['acceptance']:.3f}",
        "accepted/drafted": lambda row: f"{row['acceptance_rate']:.3f}",
        "tokens a round": lambda row: f"{row['tokens_per_round']:.2f}",
        "cost a token": lambda row: f"{row['cost_per_token']:.3f}",
        "speed-up": lambda row: speedup_cell(row["speedup"], row["best"]),
        f"{LEVEL:.0%} interval": lambda row: (
            (row["interval"] and interval_text(row["interval"])) or ""
        ),
        "formula": lambda row: f"{row['formula']:.2f}",
    }
    title = "Simulated speed-up over plain decoding"
    return long_table(title, columns, rows, ["cost_ratio"])


def _chart(request: SimulateRequest, rows: list[dict[str, Any]]) -> Curves:
    lines = {}
    for ratio in request.cost_ratio:
        fixed = [row for row in rows if row["cost_ratio"] == ratio]
        edges = [row["interval"] or (row["speedup"], row["speedup"]) for row in fixed]
        lines[f"cost ratio {ratio:g}"] = Line(
            [row["length"] for row in fixed],
            [row["speedup"] for row in fixed],
            ([low for low, _ in edges], [high for _, high in edges]),
        )
    return Curves("Simulated speed-up over length", "tokens drafted a round", {"": lines})
