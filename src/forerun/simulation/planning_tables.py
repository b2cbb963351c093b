"""Tables and charts of a plan: gains, losses, memory, and the costs of the models alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from forerun.costs.hardware import GB
from forerun.report.chart import Curves, Line
from forerun.report.table import Cell, Mark, Row, Table, long_table, speedup_cell
from forerun.simulation.request import SimulateRequest

if TYPE_CHECKING:
    from forerun.simulation.planning import Setup


def short_count(count: int) -> str:
    """A number of tokens in short form, such as `8k` for 8192."""
    return f"{count // 1024}k" if count and count % 1024 == 0 else str(count)


def _contexts(request: SimulateRequest) -> list[str]:
    return [f"context {short_count(context)}" for context in request.context]


def gains_table(request: SimulateRequest, setup: Setup, rows: Sequence[Mapping[str, Any]]) -> Table:
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
    title = f"{_quantity(setup)} over plain decoding @ best length"
    return Table(title, ["acceptance", "batch", *_contexts(request)], groups)


def contexts_table(request: SimulateRequest, contexts: Sequence[Mapping[str, Any]]) -> Table:
    cells = {(row["acceptance"], row["batch"]): row["context"] for row in contexts}
    group = [
        [Cell(f"{a:g}"), *(Cell(str(cells[a, batch] or "none")) for batch in request.batch)]
        for a in request.acceptance
    ]
    title = f"Context from which drafts from {request.draft_window} tokens of it pay"
    return Table(title, ["acceptance", *(f"batch {batch}" for batch in request.batch)], [group])


def losses_table(request: SimulateRequest, losses: Sequence[Mapping[str, Any]]) -> Table:
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
    title = f"Batches of 1-{request.most_requests} at which speculation does not pay"
    return Table(title, ["acceptance", *_contexts(request)], [group])


def memory_table(request: SimulateRequest, rows: Sequence[Mapping[str, Any]]) -> Table:
    by_place = {(row["batch"], row["context"]): row for row in rows}
    group = [
        [Cell(str(batch)), *(_memory_cell(by_place[batch, context]) for context in request.context)]
        for batch in request.batch
    ]
    return Table("Memory of weights and caches, GB", ["batch", *_contexts(request)], [group])


def _memory_cell(row: Mapping[str, Any]) -> Cell:
    mark = Mark.NO_ROOM if row["fits"] is False else Mark.NONE
    return Cell(f"{row['memory_bytes'] / GB:.1f}", mark)


def limits_table(setup: Setup) -> Table:
    rows = [{"costs": costs} for costs in (setup.target, setup.draft) if costs is not None]
    columns: dict[str, Callable[[Row], Cell | str]] = {
        "model": lambda row: str(row["costs"].shape.name),
        "parameters, 1e9": lambda row: f"{row['costs'].shape.parameters / 1e9:.2f}",
        "weights, GB": lambda row: f"{row['costs'].weight_bytes / GB:.1f}",
        "cache a token, kB": lambda row: (
            f"{float(row['costs'].traffic.cache_bytes(1, 1)) / 1e3:.1f}"
        ),
        "a token, ms": lambda row: f"{float(row['costs'].seconds(1, 1, 0)) * 1e3:.3f}",
        "FLOP/byte": lambda row: f"{float(row['costs'].traffic.work(1, 1, 0)[0].intensity):.1f}",
        "ridge point": lambda row: f"{row['costs'].limits.ridge_point:.0f}",
    }
    number = setup.target.num_devices
    where = setup.target.hardware.name + (f" x {number}" if number > 1 else "")
    return long_table(f"Models on {where}, batch 1, no context", columns, rows)


def gains_chart(request: SimulateRequest, setup: Setup) -> Curves:
    batch = np.unique(np.geomspace(1, request.most_requests, 64).astype(int))
    panels = {}
    for context, name in zip(request.context, _contexts(request), strict=True):
        lines = {}
        for acceptance in request.acceptance:
            _, gains = setup.rounds.best(acceptance, batch, context, lengths=request.lengths)
            lines[f"acceptance {acceptance:g}"] = Line(batch.tolist(), gains.tolist())
        panels[name] = lines
    where = f"{setup.target.shape.name} on {setup.target.hardware.name}"
    title = f"{_quantity(setup)} of {where}"
    return Curves(title, "requests in a batch", panels, logarithmic=True)


def _quantity(setup: Setup) -> str:
    return "Upper bound of the speed-up" if setup.free_drafts else "Speed-up"
