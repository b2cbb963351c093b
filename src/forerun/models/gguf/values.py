"""Values of the stored rows of a GGUF file."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray
from torch import Tensor

from forerun.errors import UnsupportedModelError

_OTHER = "take another quantization of the model, such as Q8_0"


# Values that are not finite are refused later, when they are loaded.
@np.errstate(over="ignore", invalid="ignore")
def values_of(rows: NDArray[np.uint8], kind: GGMLQuantizationType) -> Tensor:
    """The values of rows [rows, bytes of a row], in float32 unless they are stored in 16 bits.

    Raises:
        UnsupportedModelError: for a type that the package gguf cannot read.
    """
    if kind == GGMLQuantizationType.F16:
        return torch.from_numpy(rows.view(np.float16).copy())
    if kind == GGMLQuantizationType.BF16:
        return torch.from_numpy(rows.view(np.int16).copy()).view(torch.bfloat16)
    try:
        return torch.from_numpy(np.array(dequantize(rows, kind), dtype=np.float32))
    except NotImplementedError:
        raise UnsupportedModelError(
            f"tensors of type {kind.name} are not read; {_OTHER}."
        ) from None


def refuse_unread(name: str, key: str, kind: GGMLQuantizationType) -> None:
    """Refuse a tensor of a type that the package gguf cannot read, before anything is loaded.

    Args:
        name: name of the file.
        key: key of the tensor.
        kind: type of its values.

    Raises:
        UnsupportedModelError: naming both.
    """
    if not _is_read(kind):
        raise UnsupportedModelError(
            f"{name}: {key} is stored as {kind.name}, which is not read; {_OTHER}."
        )


@cache
def _is_read(kind: GGMLQuantizationType) -> bool:
    try:
        values_of(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except UnsupportedModelError:
        return False
    return True
