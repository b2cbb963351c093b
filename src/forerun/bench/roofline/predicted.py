"""Forwards on hardware that is not at hand, from a model's dimensions."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np

from forerun.bench.roofline.request import RooflineRequest
from forerun.bench.roofline.rows import DRAFT, FREE, TARGET, Roofline, Subject
from forerun.costs.forwards import RooflineCosts
from forerun.costs.rounds import RoundCosts
from forerun.costs.shapes import ModelShape, find_shape, read_shape
from forerun.errors import CheckpointError, UnknownNameError
from forerun.files import size_text
from forerun.simulation import hardware

_MOST_TOKENS = 1 << 14


def predict(request: RooflineRequest) -> Roofline:
    """Rows of target and draft by the roofline.

    Raises:
        ConfigError: for hardware without the limits that are needed.
        UnknownNameError: for unknown hardware, models or precisions.
        CheckpointError: for a config that cannot be read, or lacks a dimension.
    """
    target = hardware.target_costs(request.machine, shape_named(request.model), request.place.dtype)
    setup = hardware.Setup(target, None, RoundCosts.of_models(target, 0.0))
    if request.draft_model is not None:
        shape = shape_named(request.draft_model)
        setup = hardware.with_draft(target, shape, request.draft_dtype)
    draft = setup.draft
    limits, contexts = target.limits, sorted(set(request.contexts))
    rows = [
        _subject(TARGET, target).row(n, context, limits)
        for context in contexts
        for n in request.counts
    ]
    if draft is not None:
        rows += [_subject(DRAFT, draft).row(1, context, draft.limits) for context in contexts]
    return Roofline(
        mode="predicted",
        hardware=target.hardware.name,
        rows=rows,
        facts={
            "device": asdict(target.hardware),
            "weight_bytes": target.weight_bytes,
            "fits": setup.fits(1, contexts[-1]),
            "free_tokens_of_all_requests": _free_of_all(target),
        },
        notes=_notes(setup, contexts[-1]),
    )


def _free_of_all(target: RooflineCosts) -> int:
    """The most tokens of all requests together that are checked for free, attention left out."""
    tokens = np.arange(1, _MOST_TOKENS + 1)
    seconds = target.seconds(tokens, 1, 0)
    dear = np.flatnonzero(seconds > FREE * seconds[0])
    return int(dear[0]) if len(dear) else _MOST_TOKENS


def shape_named(name: str) -> ModelShape:
    """A known model, a count such as `70B`, or the dimensions in the config of any other, of which
    nothing else is read: a config.json, a checkpoint's directory, a GGUF file or a hub id.

    Raises:
        UnknownNameError: for a name that is none of these.
        CheckpointError: for a config that cannot be read, or lacks a dimension.
    """
    try:
        return find_shape(name)
    except UnknownNameError as error:
        unknown = error
    from forerun.models.checkpoint import Checkpoint  # Here, because models load torch.
    from forerun.models.config import read_config

    if name.endswith(".json"):
        return read_shape(read_config(Path(name)), name)
    try:
        return read_shape(Checkpoint.open(name).config, name)
    except CheckpointError:
        if "/" in name or Path(name).exists():
            raise
        raise unknown from None


def _subject(role: str, costs: RooflineCosts) -> Subject:
    return Subject(role, costs.shape.name, costs.precision, costs.traffic, costs.overhead)


def _notes(setup: hardware.Setup, context: int) -> list[str]:
    if setup.fits(1, context) is not False or setup.target.capacity is None:
        return []
    return [
        f"{size_text(int(setup.memory_bytes(1, context)))} of weights and cache do not fit into the "
        f"{size_text(int(setup.target.capacity))} there; share them between devices (--num-devices)."
    ]
