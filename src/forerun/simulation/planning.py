"""Predicts the gain of speculation on any hardware from its published limits, with tables and charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from forerun.costs.forwards import RooflineCosts
from forerun.costs.hardware import GB, TFLOPS, Hardware, find_hardware
from forerun.costs.rounds import FREE, LENGTHS, Costs, RoundCosts
from forerun.costs.shapes import find_shape
from forerun.errors import ConfigError
from forerun.options import check
from forerun.report.chart import Curves, Line
from forerun.report.result import Result
from forerun.report.table import Cell, Mark, Row, Table, long_table, speedup_cell
from forerun.simulation.request import SimulateRequest
from forerun.theory.inputs import Floats

LONGEST_CONTEXT = 1 << 24
MOST_REQUESTS = 1 << 20
FREE_DRAFTS = (
    "drafts are assumed to cost nothing, so the speed-ups are upper bounds; "
    "give --draft or --cost-ratio to count the time of drafting."
)


def plan(request: SimulateRequest) -> Result:
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
            "batches": losing_batches(
                setup.rounds,
                acceptance,
                context,
                lengths=request.lengths,
                most=request.most_requests,
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
    return Result("plan", {}, rows, tables, charts, facts, notes)


def break_even_context(
    rounds: RoundCosts,
    acceptance: float,
    batch_size: int = 1,
    *,
    lengths: ArrayLike = LENGTHS,
    most: int = LONGEST_CONTEXT,
) -> int | None:
    """The shortest context at which some length makes decoding faster; None if none up to `most` does.

    Drafts from a window pay above some context.
    """
    contexts = np.unique(np.geomspace(1, most, 256).astype(np.int64))

    def pays(context: ArrayLike) -> Floats:
        gains = rounds.best(acceptance, batch_size, context, lengths=lengths)[1]
        return np.asarray(gains > 1.0 + 1e-9)

    paying = np.flatnonzero(pays(contexts))
    if not len(paying):
        return None
    high = int(contexts[paying[0]])
    low = int(contexts[paying[0] - 1]) if paying[0] else -1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


def losing_batches(
    rounds: RoundCosts,
    acceptance: float,
    context: int = 0,
    *,
    lengths: ArrayLike = LENGTHS,
    most: int = 1024,
) -> list[tuple[int, int]]:
    """Ranges of batch sizes up to `most` at which no length makes decoding faster.

    Speculation stops paying when verification becomes bound by arithmetic. It can pay again with long
    contexts, where reading the cache takes most of the time (arXiv 2408.11049), and with experts,
    when a plain round reads all of them anyway.
    """
    most = check("most", most, int, ge=1, le=MOST_REQUESTS)
    batches = np.arange(1, most + 1)
    loses = rounds.best(acceptance, batches, context, lengths=lengths)[1] <= 1.0
    edges = np.flatnonzero(np.diff(np.concatenate(([False], loses, [False])).astype(int)))
    return [(int(a) + 1, int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _break_even_contexts(request: SimulateRequest, setup: Setup) -> list[dict[str, Any]]:
    """Shortest contexts at which drafts from a window pay; empty for other drafts."""
    if request.draft_window is None:
        return []
    return [
        {
            "acceptance": acceptance,
            "batch": batch,
            "context": break_even_context(setup.rounds, acceptance, batch, lengths=request.lengths),
        }
        for acceptance in request.acceptance
        for batch in request.batch
    ]


def _rows(
    request: SimulateRequest, setup: Setup, acceptance: float, context: int
) -> list[dict[str, Any]]:
    batch = np.array(request.batch)
    rounds = setup.rounds
    lengths, gains = rounds.best(acceptance, batch, context, lengths=request.lengths)
    plain_seconds = rounds.plain_seconds(batch, context)
    columns = {
        "length": lengths,
        "speedup": gains,
        "cost_ratio": rounds.drafting(1, batch, context) / plain_seconds,
        "verification_cost": setup.target.seconds(lengths + 1, batch, context) / plain_seconds,
        "plain_tokens_per_second": batch / plain_seconds,
        "tokens_per_second": batch * gains / plain_seconds,
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
    layers, _ = target.traffic.work(1, 1, 0)
    return {
        "device": asdict(target.hardware),
        "ridge_point": target.limits.ridge_point,
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
        "cache_bytes_per_token": float(costs.traffic.cache_bytes(1, 1)),
        "plain_seconds": float(costs.seconds(1, 1, 0)),
    }


@dataclass(frozen=True)
class WindowedCosts:
    """Costs of forwards that read only a window of their context, as in drafting by self_sparse.

    Args:
        whole: costs of forwards that read the whole context.
        window: most tokens of context that a forward reads.
    """

    whole: Costs
    window: int

    def seconds(self, num_tokens: ArrayLike, batch_size: ArrayLike, context: ArrayLike) -> Any:
        """Seconds of a forward; see `Costs.seconds`."""
        return self.whole.seconds(num_tokens, batch_size, np.minimum(context, self.window))


@dataclass(frozen=True)
class Setup:
    """Costs of target and draft on the hardware; no draft if it is free or given by its cost ratio."""

    target: RooflineCosts
    draft: RooflineCosts | None
    rounds: RoundCosts

    @property
    def free_drafts(self) -> bool:
        """True if drafting is assumed to cost nothing, so that speed-ups are upper bounds."""
        return self.rounds.draft is FREE

    def memory_bytes(self, batch_size: int, context: int) -> float:
        """Bytes of weights and caches."""
        models = [self.target] if self.draft is None else [self.target, self.draft]
        return sum(
            model.weight_bytes + float(model.traffic.cache_bytes(batch_size, context))
            for model in models
        )

    def fits(self, batch_size: int, context: int) -> bool | None:
        """True if weights and caches fit into memory; None if the memory's size is not known."""
        capacity = self.target.capacity
        return None if capacity is None else self.memory_bytes(batch_size, context) <= capacity


def set_up(request: SimulateRequest) -> Setup:
    """Compute the costs of target and draft.

    Raises:
        ConfigError, UnknownNameError: as `plan`.
    """
    assert request.target is not None
    target = RooflineCosts(
        find_shape(request.target),
        hardware_of(request),
        "bf16" if request.dtype == "auto" else request.dtype,
        None if request.cache_dtype == "auto" else request.cache_dtype,
        overhead=request.overhead / 1e3,
        num_devices=request.num_devices,
        parallel_efficiency=request.parallel_efficiency,
    )
    drafting: Costs | float = request.cost_ratio[0] if request.cost_ratio else 0.0
    draft = None
    if request.draft_window is not None:
        drafting = WindowedCosts(target, request.draft_window)
    elif request.draft is not None and request.draft.lower() != "none":
        precision = target.precision if request.draft_dtype == "auto" else request.draft_dtype
        drafting = draft = replace(target, shape=find_shape(request.draft), precision=precision)
    return Setup(target, draft, RoundCosts.of_models(target, drafting))


def hardware_of(request: SimulateRequest) -> Hardware:
    """The named device, with given limits in place of its own.

    Raises:
        ConfigError: without a name and both limits.
        UnknownNameError: for a name that is not known.
    """
    own: dict[str, Any] = {}
    if request.bandwidth is not None:
        own["bandwidth"] = request.bandwidth * GB
    if request.flops is not None:
        own |= dict.fromkeys(("fp16", "fp32", "fp8"), request.flops * TFLOPS)
    if request.memory is not None:
        own["capacity"] = request.memory * GB
    if request.hardware is not None:
        return replace(find_hardware(request.hardware), **own)
    for name in ("bandwidth", "flops"):
        if getattr(request, name) is None:
            raise ConfigError(f"your own hardware needs --{name}; add it, or name a --hardware.")
    return Hardware("your own", **own)


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
