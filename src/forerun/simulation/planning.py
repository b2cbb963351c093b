"""Plans the gain of speculation on hardware that is not at hand, from its published limits."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from forerun.report.result import Result, settings_of
from forerun.simulation.hardware import Request, Setup, set_up
from forerun.simulation.planning_tables import (
    contexts_table,
    gains_chart,
    gains_table,
    limits_table,
    losses_table,
    memory_table,
)
from forerun.simulation.roofline import RooflineCosts

FREE_DRAFTS = (
    "drafts are assumed to cost nothing, so the speed-ups are upper bounds; "
    "give --draft or --cost-ratio to count the time of drafting."
)


def plan(request: Request) -> Result:
    """Compute a row for every acceptance, batch size and context, at the best of the lengths.

    Raises:
        ConfigError: for hardware without the necessary limits.
        UnknownNameError: for unknown hardware or models.
    """
    setup = set_up(request)
    rows = [
        row
        for acceptance in request.acceptance
        for context in request.context
        for row in _rows(request, setup, acceptance, context)
    ]
    losses = [
        {
            "acceptance": acceptance,
            "context": context,
            "batches": setup.rounds.losing_batches(
                acceptance, context, lengths=request.lengths, most=request.most_requests
            ),
        }
        for acceptance in request.acceptance
        for context in request.context
    ]
    tables = [
        gains_table(request, setup, rows),
        losses_table(request, losses),
        memory_table(request, rows),
        limits_table(setup),
    ]
    contexts = _break_even_contexts(request, setup)
    if contexts:
        tables.append(contexts_table(request, contexts))
    facts = {
        **({"break_even_contexts": contexts} if contexts else {}),
        "upper_bound": setup.free_drafts,
        "limits": _limits(setup),
        "losing_batches": losses,
    }
    notes = [FREE_DRAFTS] if setup.free_drafts else []
    charts = [gains_chart(request, setup)]
    return Result("plan", settings_of(request), rows, tables, charts, facts, notes)


def _break_even_contexts(request: Request, setup: Setup) -> list[dict[str, Any]]:
    """Shortest contexts at which drafts from a window pay; empty for other drafts."""
    if request.draft_window is None:
        return []
    return [
        {
            "acceptance": acceptance,
            "batch": batch,
            "context": setup.rounds.break_even_context(acceptance, batch, lengths=request.lengths),
        }
        for acceptance in request.acceptance
        for batch in request.batch
    ]


def _rows(request: Request, setup: Setup, acceptance: float, context: int) -> list[dict[str, Any]]:
    batch = np.array(request.batch)
    rounds = setup.rounds
    lengths, gains = rounds.best(acceptance, batch, context, lengths=request.lengths)
    plain_seconds = rounds.plain_seconds(batch, context)
    columns = {
        "length": lengths,
        "speedup": gains,
        "cost_ratio": rounds.draft_seconds(batch, context) / plain_seconds,
        "verification_cost": setup.target.seconds(lengths + 1, batch, context) / plain_seconds,
        "plain_tokens_per_second": rounds.tokens_per_second(acceptance, 0, batch, context),
        "tokens_per_second": rounds.tokens_per_second(acceptance, lengths, batch, context),
    }
    return [
        {
            "acceptance": acceptance,
            "batch": size,
            "context": context,
            **{name: values[index].item() for name, values in columns.items()},
            "pays": bool(gains[index] > 1.0),
            "memory_bytes": setup.memory_bytes(size, context),
            "fits": setup.fits(size, context),
        }
        for index, size in enumerate(request.batch)
    ]


def _limits(setup: Setup) -> dict[str, Any]:
    target, draft = setup.target, setup.draft
    layers, _ = target.work(1, 1, 0)
    return {
        "device": asdict(target.device),
        "ridge_point": target.ridge_point,
        "plain_intensity": float(layers.intensity),
        "capacity_bytes": target.capacity,
        "target": _of_model(target),
        "draft": None if draft is None else _of_model(draft),
    }


def _of_model(costs: RooflineCosts) -> dict[str, Any]:
    return {
        "name": costs.shape.name,
        "parameters": costs.shape.parameters,
        "active_parameters": costs.shape.active_parameters,
        "weight_bytes": costs.weight_bytes,
        "cache_bytes_per_token": float(costs.cache_bytes(1, 1)),
        "plain_seconds": float(costs.seconds(1, 1, 0)),
    }
