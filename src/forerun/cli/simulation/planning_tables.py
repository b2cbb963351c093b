"""A plan for people: gains, where it loses, memory, and what the models cost alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from forerun.cli.simulation.hardware import Request, Setup
from forerun.cli.simulation.result import Cell, Curves, Mark, Table, speedup_cell
from forerun.theory.devices import GB


def tokens_text(count: int) -> str:
    """`8k` for 8192."""
    return f"{count // 1024}k" if count and count % 1024 == 0 else str(count)


def _contexts(request: Request) -> list[str]:
    return [f"context {tokens_text(context)}" for context in request.context]


def gains_table(request: Request, rows: Sequence[Mapping[str, Any]]) -> Table:
    cells: dict[tuple[float, int, int], Cell] = {}
    for row in rows:
        cell = speedup_cell(row["speedup"], tail=f"@{row['length']}")
        if row["fits"] is False:
            cell = cell._replace(mark=Mark.NO_ROOM)
        cells[row["acceptance"], row["batch"], row["context"]] = cell
    groups = [
        [
            [Cell(f"{a:g}"), Cell(str(batch)), *(cells[a, batch, c] for c in request.context)]
            for batch in request.batch
        ]
        for a in request.acceptance
    ]
    title = "Speed-up over plain decoding @ best length"
    return Table(title, ["acceptance", "batch", *_contexts(request)], groups)


def losses_table(request: Request, losses: Sequence[Mapping[str, Any]]) -> Table:
    texts = {
        (row["acceptance"], row["context"]): ", ".join(
            str(low) if low == high else f"{low}-{high}" for low, high in row["batches"]
        )
        for row in losses
    }
    group = [
        [Cell(f"{a:g}"), *(Cell(texts[a, c] or "none") for c in request.context)]
        for a in request.acceptance
    ]
    title = f"Batches of 1-{request.most_sequences} at which speculation does not pay"
    return Table(title, ["acceptance", *_contexts(request)], [group])


def memory_table(request: Request, rows: Sequence[Mapping[str, Any]]) -> Table:
    found = {(row["batch"], row["context"]): row for row in rows}
    group = [
        [Cell(str(batch)), *(_memory_cell(found[batch, context]) for context in request.context)]
        for batch in request.batch
    ]
    return Table("Memory of weights and caches, GB", ["batch", *_contexts(request)], [group])


def _memory_cell(row: Mapping[str, Any]) -> Cell:
    mark = Mark.NO_ROOM if row["fits"] is False else Mark.NONE
    return Cell(f"{row['memory_bytes'] / GB:.1f}", mark)


def limits_table(setup: Setup) -> Table:
    models = [setup.target] if setup.draft is None else [setup.target, setup.draft]
    group = [
        [
            Cell(costs.shape.name),
            Cell(f"{costs.shape.parameters / 1e9:.2f}"),
            Cell(f"{costs.weight_bytes / GB:.1f}"),
            Cell(f"{float(costs.cache_bytes(1, 1)) / 1e3:.1f}"),
            Cell(f"{float(costs.seconds(1, 1, 0)) * 1e3:.3f}"),
            Cell(f"{float(costs.work(1, 1, 0)[0].intensity):.1f}"),
            Cell(f"{costs.ridge_point:.0f}"),
        ]
        for costs in models
    ]
    header = (
        "model",
        "parameters, 1e9",
        "weights, GB",
        "cache a token, kB",
        "a token, ms",
        "FLOP/byte",
        "ridge point",
    )
    several = f" x {setup.target.num_devices}" if setup.target.num_devices > 1 else ""
    title = f"Models on {setup.target.device.name}{several}, batch 1, no context"
    return Table(title, header, [group])


def gains_chart(request: Request, setup: Setup) -> Curves:
    batch = np.unique(np.geomspace(1, request.most_sequences, 64).astype(int))
    lines = {
        f"acceptance {a:g}, context {tokens_text(context)}": (
            batch.tolist(),
            setup.rounds.best(a, batch, context, lengths=request.lengths)[1].tolist(),
        )
        for a in request.acceptance
        for context in request.context
    }
    title = f"Speed-up of {setup.target.shape.name} on {setup.target.device.name}"
    return Curves(title, "sequences in a batch", lines, logarithmic=True)
