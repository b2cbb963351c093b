"""Precision of a GGUF file's tensors on the kernels, and the error that it causes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.errors import CheckpointError
from forerun.models.gguf.blocks import is_exact
from forerun.models.gguf.source import GgufSource
from forerun.models.gguf.values import values_of
from forerun.models.layouts import Layout

# Number of rows of a tensor from which its error is estimated.
_ROWS = 32


@dataclass(frozen=True)
class Rounding:
    """Tensors of one stored type and the precision that they run in.

    Args:
        stored, precision: names of both.
        tensors, parameters: number of each.
        error: root mean square of the rounding error relative to that of the weights, about the
            relative error of products; 0 if the weights are exact.
    """

    stored: str
    precision: str
    tensors: int
    parameters: int
    error: float


def roundings(source: GgufSource, layout: Layout) -> list[Rounding]:
    """All tensors of a model grouped by type and precision, most parameters first."""
    formats, keys = source.formats(layout), dict[tuple[str, str], list[str]]()
    for tensor in layout.tensors:
        for part in tensor.parts:
            stored = source.tensors[part.key].kind.name
            precision = formats.get(tensor.name, "fp32")
            keys.setdefault((stored, precision), []).append(part.key)
    found = [
        Rounding(
            stored,
            precision,
            len(names),
            sum(math.prod(source.shapes[name]) for name in names),
            max(_error(source, name, precision) for name in names),
        )
        for (stored, precision), names in keys.items()
    ]
    return sorted(found, key=lambda entry: -entry.parameters)


def _error(source: GgufSource, key: str, precision: str) -> float:
    kind, shape = source.tensors[key].kind, source.shapes[key]
    if precision == "fp32" or (is_exact(kind) and precision.startswith("int")):
        return 0.0
    rows = min(_ROWS, shape[0])
    exact = values_of(source.rows(key, 0, rows), kind).double()
    difference = exact - _rounded(source, key, rows, precision, exact)
    power, lost = exact.square().mean().item(), difference.square().mean().item()
    if not math.isfinite(power + lost):
        raise CheckpointError(f"{source.name}: {key} is not finite; download it again.")
    return math.sqrt(lost / power) if power else 0.0


def _rounded(source: GgufSource, key: str, rows: int, precision: str, exact: Tensor) -> Tensor:
    if precision == "bf16":
        return exact.bfloat16().double()
    return torch.from_numpy(source.codes(key, 0, rows, precision).values()).double()
