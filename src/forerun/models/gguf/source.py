"""The tensors of a GGUF file by the names under which they are published elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, get_tensor_name_map
from gguf.quants import dequantize
from numpy.typing import NDArray
from torch import Tensor

from forerun.errors import UnsupportedModelError
from forerun.models.architecture import Architecture
from forerun.models.gguf.header import GgufHeader, StoredTensor
from forerun.models.layouts import Layout

# Factors on the frequencies of the rotary embedding, which are read with the shape.
FREQUENCIES = "rope_freqs.weight"

_BF16 = GGMLQuantizationType.BF16
_ENDINGS = (".weight", ".bias")


class GgufSource:
    """Weights of a GGUF file; implements `forerun.models.sources.Source`.

    llama.cpp turns neighbouring pairs of a query or a key of its `llama` models, all others halves, as
    the published weights do: the rows of those projections are put back into their order.

    Args:
        header: of the file.
        layout: of the model that it describes.
        shape: of the same.
    """

    def __init__(self, header: GgufHeader, layout: Layout, shape: Architecture) -> None:
        self.name = str(header.path)
        names = _gguf_names(header, layout, shape)
        known = {stored: key for key, stored in names.items()}
        self.tensors: dict[str, StoredTensor] = {
            known.get(name, name): tensor
            for name, tensor in header.tensors.items()
            if name != FREQUENCIES
        }
        self.shapes = {key: tensor.shape for key, tensor in self.tensors.items()}
        self._orders = dict(_orders(header, shape))

    def read(self, key: str) -> Tensor:
        """The tensor, dequantized, in float32 unless it is stored in 16 bits."""
        tensor = self.tensors[key]
        return self.slice(key, 0, 0, tensor.shape[0])

    def slice(self, key: str, dim: int, start: int, stop: int) -> Tensor:
        """A part of it along its first dimension."""
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

    def _order(self, key: str, start: int, stop: int) -> Any:
        order = self._orders.get(key)
        return slice(start, stop) if order is None else torch.from_numpy(order[start:stop].copy())


def values_of(rows: NDArray[np.uint8], kind: GGMLQuantizationType) -> Tensor:
    """What stored rows stand for, in float32 unless they are in 16 bits.

    Raises:
        UnsupportedModelError: for a type that the package gguf cannot read.
    """
    if kind == GGMLQuantizationType.F16:
        return torch.from_numpy(rows.view(np.float16).copy())
    if kind == _BF16:
        return torch.from_numpy(rows.view(np.int16).copy()).view(torch.bfloat16)
    try:
        return torch.from_numpy(np.array(dequantize(rows, kind), dtype=np.float32))
    except NotImplementedError:
        raise UnsupportedModelError(
            f"tensors of type {kind.name} are not read; take another quantization of the model, "
            "such as Q8_0."
        ) from None


def frequency_factors(header: GgufHeader) -> tuple[float, ...]:
    """What the frequencies of the rotary embedding are divided by, one by one; empty for nothing."""
    stored = header.tensors.get(FREQUENCIES)
    return (
        () if stored is None else tuple(values_of(stored.bytes(), stored.kind).flatten().tolist())
    )


def _gguf_names(header: GgufHeader, layout: Layout, shape: Architecture) -> dict[str, str]:
    """Names in the file by published key."""
    arch = next(arch for arch in MODEL_ARCH if arch.name.lower() == _arch_of(header))
    table = get_tensor_name_map(arch, shape.num_layers)
    names = {key: table.get_name(key, try_suffixes=_ENDINGS) for key in layout.published}
    return {key: name for key, name in names.items() if name is not None}


def _arch_of(header: GgufHeader) -> str:
    family = str(header.metadata["general.architecture"])
    return "llama" if family == "mistral" else family


def _orders(header: GgufHeader, shape: Architecture) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """By key, which stored row stands at each published place."""
    if _arch_of(header) != "llama":
        return
    for projection, heads in (("q_proj", shape.num_heads), ("k_proj", shape.num_kv_heads)):
        rows = np.arange(heads * shape.head_dim)
        order = rows.reshape(heads, -1, 2).swapaxes(1, 2).ravel()
        for layer in range(shape.num_layers):
            for ending in _ENDINGS:
                yield f"model.layers.{layer}.self_attn.{projection}{ending}", order
