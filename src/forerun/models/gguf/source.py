"""Tensors of a GGUF file under their published names, and the precision that they have on the kernels."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
from numpy.typing import NDArray
from torch import Tensor

from forerun.costs.precision import STORED_FORMATS
from forerun.errors import CheckpointError
from forerun.models.architecture import Architecture
from forerun.models.gguf.blocks import (
    Groups,
    SuperBlocks,
    codes_of,
    precision_of,
    refuse_unread,
    values_of,
)
from forerun.models.gguf.families import FAMILIES
from forerun.models.gguf.header import GgufHeader, StoredTensor
from forerun.models.layouts import Layout

# Factors on the frequencies of the rotary embedding, which are part of the architecture.
FREQUENCIES = "rope_freqs.weight"
# Those of Phi-3, for texts within the length that it was first trained on and for longer ones.
LONG_FREQUENCIES = {
    "short_factor": "rope_factors_short.weight",
    "long_factor": "rope_factors_long.weight",
}

_ENDINGS = (".weight", ".bias")
_EXPERT = re.compile(r"\.experts\.(\d+)\.")


class GgufSource:
    """Weights of a GGUF file; implements `forerun.models.sources.Source`.

    Rows of queries and keys that llama.cpp rotates in pairs are put back into their published order.

    Args:
        header: header of the file.
        layout: layout of the model in it.
        shape: architecture of the model.
    """

    def __init__(self, header: GgufHeader, layout: Layout, shape: Architecture) -> None:
        self.name = str(header.path)
        names = _gguf_names(header, layout, shape)
        factors = {FREQUENCIES, *LONG_FREQUENCIES.values()}
        stored = {name: tensor for name, tensor in header.tensors.items() if name not in factors}
        self.tensors: dict[str, StoredTensor] = {
            key: _part(stored[name], key, shape.num_experts)
            for key, name in names.items()
            if name in stored
        } | {name: stored[name] for name in stored.keys() - names.values()}
        for name, tensor in header.tensors.items():
            refuse_unread(self.name, name, tensor.kind)
        self.shapes = {key: tensor.shape for key, tensor in self.tensors.items()}
        self._orders = dict(_orders(header, shape))

    def read(self, key: str) -> Tensor:
        """Read a tensor, dequantized, in float32 unless it is stored in 16 bits."""
        tensor = self.tensors[key]
        return self.slice(key, 0, 0, tensor.shape[0])

    def slice(self, key: str, dim: int, start: int, stop: int) -> Tensor:
        """Read a part of a tensor along its first dimension."""
        tensor = self.tensors[key]
        assert dim == 0, "no family that is read from GGUF stores transposed weights"
        if len(tensor.shape) == 1:
            return values_of(self.rows(key, 0, 1), tensor.kind).flatten()[
                self._order(key, start, stop)
            ]
        return values_of(self.rows(key, start, stop), tensor.kind)

    def rows(self, key: str, start: int, stop: int) -> NDArray[np.uint8]:
        """Rows as they are stored, [rows, bytes of a row], in the published order."""
        tensor = self.tensors[key]
        order = self._orders.get(key)
        if order is None or len(tensor.shape) == 1:
            return tensor.bytes(start, stop)
        return tensor.bytes()[order[start:stop]]

    def formats(self, layout: Layout) -> dict[str, str]:
        """The precision of each stored matrix of a decoder on the kernels, by its published key."""
        return {
            part.key: precision_of(self.tensors[part.key].kind, tensor.shape[1])
            for tensor in layout.tensors
            for part in tensor.parts
            if len(tensor.shape) == 2 and part.key in self.tensors
        }

    def codes(self, key: str, start: int, stop: int) -> Groups | SuperBlocks:
        """Rows [start, stop) of a matrix that the kernels hold quantized."""
        return codes_of(self.rows(key, start, stop), self.tensors[key].kind)

    def _order(self, key: str, start: int, stop: int) -> Any:
        order = self._orders.get(key)
        return slice(start, stop) if order is None else torch.from_numpy(order[start:stop].copy())


def frequency_factors(
    header: GgufHeader, head_dim: int, name: str = FREQUENCIES
) -> tuple[float, ...]:
    """Divisors of the rotary embedding's frequencies, one for each; empty if there are none.

    Raises:
        CheckpointError: unless they are as many positive numbers as there are frequencies.
    """
    stored = header.tensors.get(name)
    if stored is None:
        return ()
    factors = values_of(stored.bytes(), stored.kind).flatten().tolist()
    if len(factors) != head_dim // 2 or not all(0 < factor < math.inf for factor in factors):
        raise CheckpointError(
            f"{header.path}: {name} must hold {head_dim // 2} positive numbers; download it again."
        )
    return tuple(factors)


def long_rope_factors(header: GgufHeader, rotated: int) -> dict[str, list[float]]:
    """Divisors of the frequencies of `rotated` values of a head, by Phi-3's names for short and long texts.

    Raises:
        CheckpointError: if one of both is missing, and as `frequency_factors`.
    """
    found = {
        key: list(frequency_factors(header, rotated, name))
        for key, name in LONG_FREQUENCIES.items()
    }
    if not all(found.values()):
        raise CheckpointError(
            f"{header.path} has one of {', '.join(LONG_FREQUENCIES.values())} alone; download it again."
        )
    return found


# Made for every layer at once, which takes time, and wanted twice while a model is loaded.
_name_map = cache(get_tensor_name_map)


def _gguf_names(header: GgufHeader, layout: Layout, shape: Architecture) -> dict[str, str]:
    """Names in the file by published key."""
    family = header.metadata["general.architecture"]
    arch = next(arch for arch, name in MODEL_ARCH_NAMES.items() if name == family)
    table = _name_map(arch, shape.num_layers)
    names = {
        key: table.get_name(
            _EXPERT.sub(".experts.", key if key.endswith(_ENDINGS) else f"{key}.weight"),
            try_suffixes=_ENDINGS,
        )
        for key in layout.published
    }
    return {key: name for key, name in names.items() if name is not None}


def _part(tensor: StoredTensor, key: str, experts: int) -> StoredTensor:
    """The part of a tensor that a published key stands for: of all experts' matrices that of one."""
    expert = _EXPERT.search(key)
    dimensions = 2 if key.endswith(".bias") else 3
    if expert is None or len(tensor.shape) != dimensions or tensor.shape[0] != experts:
        return tensor
    start = tensor.start + int(expert[1]) * tensor.nbytes // experts
    return replace(tensor, shape=tensor.shape[1:], start=start)


def _orders(header: GgufHeader, shape: Architecture) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Index of the stored row for each published row, by key."""
    if not FAMILIES[header.metadata["general.architecture"]].pairs:
        return
    for projection, heads in (("q_proj", shape.num_heads), ("k_proj", shape.num_kv_heads)):
        rows = np.arange(heads * shape.head_dim)
        order = rows.reshape(heads, -1, 2).swapaxes(1, 2).ravel()
        for layer in range(shape.num_layers):
            for ending in _ENDINGS:
                yield f"model.layers.{layer}.self_attn.{projection}{ending}", order


# Number of rows of a tensor from which its error is estimated.
_ROWS = 32


@dataclass(frozen=True)
class Rounding:
    """Tensors of one stored type and the precision that they run in.

    Args:
        stored, precision: names of both.
        tensors, parameters: number of each.
        file_bytes, held_bytes: their size in the file and in memory.
        error: root mean square of the rounding error relative to that of the weights, about the
            relative error of products; 0 if the weights are exact.
    """

    stored: str
    precision: str
    tensors: int
    parameters: int
    file_bytes: int
    held_bytes: int
    error: float


def roundings(source: GgufSource, layout: Layout) -> list[Rounding]:
    """All tensors of a model grouped by type and precision, most parameters first."""
    formats, keys = source.formats(layout), dict[tuple[str, str], list[str]]()
    for tensor in layout.tensors:
        for part in tensor.parts:
            stored = source.tensors[part.key].kind.name
            precision = formats.get(part.key, "fp32")
            keys.setdefault((stored, precision), []).append(part.key)
    found = [
        Rounding(
            stored,
            precision,
            len(names),
            parameters := sum(math.prod(source.shapes[name]) for name in names),
            sum(source.tensors[name].nbytes for name in names),
            int(parameters * STORED_FORMATS[precision]),
            max(_error(source, name, precision) for name in names),
        )
        for (stored, precision), names in keys.items()
    ]
    return sorted(found, key=lambda entry: -entry.parameters)


def _error(source: GgufSource, key: str, precision: str) -> float:
    kind, shape = source.tensors[key].kind, source.shapes[key]
    if precision == "fp32":
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
    held = source.codes(key, 0, rows)
    return exact if isinstance(held, SuperBlocks) else torch.from_numpy(held.values()).double()
