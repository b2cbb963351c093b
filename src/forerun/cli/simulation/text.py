"""n-gram target and draft fitted to a text, decoded speculatively at every length."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
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
from forerun.errors import ConfigError
from forerun.theory.adaptive import AdaptiveLength
from forerun.theory.formulas import speedup
from forerun.theory.language_models import Context, LanguageModel, NgramModel
from forerun.theory.results import Simulation
from forerun.theory.simulator import speculative

# Counting n-grams takes some ten times the text's size in memory, and half a second a million.
MOST_BYTES = 16 << 20
_CACHED_ROWS = 1 << 14


@dataclass(frozen=True)
class Request:
    """What to simulate.

    Args:
        text: the file that `content` was read from.
        unit: what a token is, "character" or "word".
        target_order, draft_order: n of the models.
        num_tokens: to generate at each length.
    """

    text: str
    unit: str
    target_order: int
    draft_order: int
    lengths: Sequence[int]
    cost_ratios: Sequence[float]
    num_tokens: int
    seed: int
    adaptive: bool


def read_text(file: str) -> str:
    """The text of a UTF-8 file, or of standard input for `-`.

    Raises:
        ConfigError: where it cannot be read, is empty, too large or no text.
    """
    where = "standard input" if file == "-" else f"text file {file}"
    try:
        if file == "-":
            content = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with Path(file).open("rb") as source:
                content = source.read(MOST_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or "unknown reason").lower()
        raise ConfigError(f"{where} cannot be read: {reason}.") from error
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{where} has more than {MOST_BYTES >> 20} MiB; give a part of it.")
    try:
        found = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where} is not UTF-8 text (byte {error.start}).") from error
    if not found.strip():
        raise ConfigError(f"{where} is empty; give some text to fit the models to.")
    return found


def simulate_text(request: Request, content: str) -> Result:
    """Rows for every cost ratio and length, from one run a length.

    Raises:
        ConfigError: for a text too short for the orders.
    """
    target = NgramModel.fit(content, request.target_order, unit=request.unit)
    draft = NgramModel.fit(
        content, request.draft_order, unit=request.unit, vocabulary=target.vocabulary
    )
    pair = (_remembering(target, request.target_order), _remembering(draft, request.draft_order))
    runs = {str(length): _run(request, pair, length) for length in request.lengths}
    if request.adaptive:
        runs["adaptive"] = _run(request, pair, AdaptiveLength())
    rows = [
        row
        for ratio in request.cost_ratios
        for row in _mark_best([_row(name, run, ratio) for name, run in runs.items()])
    ]
    policy = "adaptive" if request.adaptive else "fixed"
    settings = asdict(request) | {"policy": policy, "level": LEVEL}
    del settings["adaptive"]
    settings["cost_ratio"] = settings.pop("cost_ratios")
    facts = {"characters": len(content), "vocab_size": target.vocab_size}
    return Result(settings, rows, [_table(rows)], [_chart(request, rows)], facts)


def _remembering(model: NgramModel, order: int) -> LanguageModel:
    """The same model; rows that are asked for again are not made again."""
    row = lru_cache(maxsize=_CACHED_ROWS)(model)

    def remembered(context: Context, /) -> Any:
        return row(context[max(0, len(context) - order + 1) :])

    return remembered


def _run(
    request: Request, pair: tuple[LanguageModel, LanguageModel], length: int | AdaptiveLength
) -> Simulation:
    # A length draws its own numbers, whatever other lengths are tried.
    rng = np.random.default_rng([request.seed, length if isinstance(length, int) else 0])
    return speculative(*pair, (), request.num_tokens, rng, length=length)


def _row(name: str, run: Simulation, ratio: float) -> dict[str, Any]:
    found = run.speedup_estimate(ratio)
    adaptive = name == "adaptive"
    alpha = run.tested_acceptance
    return {
        "cost_ratio": ratio,
        "policy": name if adaptive else "fixed",
        "length": run.draft_calls / run.target_calls if adaptive else int(name),
        "acceptance": alpha,
        "acceptance_rate": run.acceptance_rate,
        "tokens_per_round": run.tokens_per_round,
        "target_calls": run.target_calls,
        "draft_calls": run.draft_calls,
        "cost_per_token": 1.0 / found.value,
        "speedup": found.value,
        # Of one round nothing can be said.
        "interval": list(found.interval(LEVEL)) if len(run.rounds) > 1 else None,
        "formula": None if adaptive else speedup(alpha, int(name), ratio),
        "pays": found.value > 1.0,
    }


def _mark_best(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    best = max(row["speedup"] for row in rows if row["policy"] == "fixed")
    return [row | {"best": row["policy"] == "fixed" and row["speedup"] == best} for row in rows]


def _table(rows: list[dict[str, Any]]) -> Table:
    groups: dict[float, list[list[Cell]]] = {}
    for row in rows:
        adaptive = row["policy"] == "adaptive"
        groups.setdefault(row["cost_ratio"], []).append(
            [
                Cell(f"{row['cost_ratio']:g}"),
                Cell(f"adaptive ({row['length']:.1f})" if adaptive else str(row["length"])),
                Cell(f"{row['acceptance']:.3f}"),
                Cell(f"{row['acceptance_rate']:.3f}"),
                Cell(f"{row['tokens_per_round']:.2f}"),
                Cell(str(row["target_calls"])),
                Cell(f"{row['cost_per_token']:.3f}"),
                speedup_cell(row["speedup"], row["best"]),
                Cell(interval_text(row["interval"]) if row["interval"] else ""),
                Cell("" if adaptive else f"{row['formula']:.2f}"),
            ]
        )
    header = (
        "cost ratio",
        "length",
        "acceptance",
        "accepted/drafted",
        "tokens a round",
        "target calls",
        "cost a token",
        "speed-up",
        f"{LEVEL:.0%} interval",
        "formula",
    )
    return Table("Simulated speed-up over plain decoding", header, list(groups.values()))


def _chart(request: Request, rows: list[dict[str, Any]]) -> Curves:
    lines: dict[str, tuple[list[float], list[float]]] = {}
    bands: dict[str, tuple[list[float], list[float]]] = {}
    for ratio in request.cost_ratios:
        fixed = [r for r in rows if r["cost_ratio"] == ratio and r["policy"] == "fixed"]
        name = f"cost ratio {ratio:g}"
        lines[name] = ([r["length"] for r in fixed], [r["speedup"] for r in fixed])
        edges = [r["interval"] or (r["speedup"], r["speedup"]) for r in fixed]
        bands[name] = ([low for low, _ in edges], [high for _, high in edges])
    return Curves("Simulated speed-up over length", "tokens drafted a round", lines, bands)
