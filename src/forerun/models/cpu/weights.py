"""Transfer of a checkpoint to the kernels: the architecture by their names, the weights chunk by chunk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, cast

import torch

from forerun.models.architecture import Architecture
from forerun.models.families import CLAMPED_SWIGLU
from forerun.models.layouts import Fused, Published, layout_of
from forerun.models.rope import frequencies
from forerun.models.sources import CodedSource, Source

# Bytes of published weights that are read at a time; they are packed and then dropped.
CHUNK_BYTES = 8 * 2**20

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "gelu": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    CLAMPED_SWIGLU: CLAMPED_SWIGLU,
}


def describe_shape(
    shape: Architecture, precision: str, group: int, formats: Mapping[str, str]
) -> dict[str, Any]:
    """The architecture in the form that the kernels take.

    Args:
        shape: the architecture.
        precision: precision of the weights.
        group: columns that share a scale; 0 for the precision's own number.
        formats: precisions of matrices that differ, by published key.
    """
    kinds = sorted({kind for kind in shape.ropes if kind is not None})
    places: dict[str | None, int] = {kind: place for place, kind in enumerate(kinds)} | {None: -1}
    ropes = [frequencies(shape, kind) for kind in kinds]
    return {
        **vars(shape),
        "precision": precision,
        "head_precision": "int8" if precision == "int4" else precision,
        "precisions": {
            tensor.name: _runs(tensor, formats)
            for tensor in layout_of(shape).tensors
            if all(part.key in formats for part in tensor.parts)
        },
        "group": group,
        "activation": ACTIVATIONS[shape.activation],
        "each": [
            (window or 0, places[kind])
            for window, kind in zip(shape.windows, shape.ropes, strict=True)
        ],
        "ropes": [(inverse.tolist(), scale) for inverse, scale in ropes],
    }


def _runs(tensor: Fused, formats: Mapping[str, str]) -> list[tuple[int, str]]:
    """Numbers of rows of one precision each, from the first on."""
    runs = groupby(tensor.parts, lambda part: formats[part.key])
    return [(sum(part.rows for part in parts), precision) for precision, parts in runs]


def chunks(
    tensor: Fused, source: Source, keys: Mapping[str, str], formats: Mapping[str, str]
) -> Iterator[tuple[int, Any]]:
    """Rows of a tensor with the index of the first, read chunk by chunk from its published parts.

    Args:
        tensor: the tensor.
        source: source of the published parts.
        keys: the source's keys by published key.
        formats: precisions of matrices by published key; rows in a quantized one are as
            `CodedSource.codes` says, all others are a tensor.
    """
    for part, first, start, stop in _ranges(tensor):
        if formats.get(part.key, "").startswith(("int", "q", "iq")):
            yield first, cast(CodedSource, source).codes(keys[part.key], start, stop)
            continue
        chunk = source.slice(keys[part.key], int(part.transposed), start, stop)
        if tensor.offset or chunk.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            chunk = chunk.float() + tensor.offset
        yield first, (chunk.t() if part.transposed else chunk).contiguous()


def _ranges(tensor: Fused) -> Iterator[tuple[Published, int, int, int]]:
    """Ranges of rows of a tensor: the part, the first row in the tensor, and the rows in the part."""
    before = 0
    for part in tensor.parts:
        columns = math.prod(part.shape) // max(part.rows, 1)
        step = max(CHUNK_BYTES // (4 * max(columns, 1)), 1)
        for start in range(0, part.rows, step):
            yield part, before + start, start, min(start + step, part.rows)
        before += part.rows
