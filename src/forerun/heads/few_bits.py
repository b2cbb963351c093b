"""Matrices of heads that are stored in 8 or 4 bits, with scales."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from forerun.errors import CheckpointError
from forerun.files import printable

SCALES = "_scale"
"""Suffix of the names of a matrix's scales, one per row and group of columns."""
ZERO = 8
"""Code of 0 in 4 bits."""


def dequantized(directory: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with matrices in 8 and 4 bits converted to bf16.

    Args:
        directory: directory that they come from, for messages.
        tensors: tensors by name; scales are removed. Codes in 8 bits are int8; in 4 bits two share
            a uint8.

    Raises:
        CheckpointError: for scales that fit no matrix.
    """
    for name in [name for name in tensors if name.endswith(SCALES)]:
        key, scales = name.removesuffix(SCALES), tensors.pop(name)
        codes = tensors.get(key)
        if codes is not None and codes.dtype == torch.uint8 and codes.dim() == 2:
            codes = unpacked(codes)
        fits = codes is not None and codes.dtype == torch.int8 and codes.dim() == scales.dim() == 2
        if codes is None or not fits or codes.shape[0] != scales.shape[0] or not scales.numel():
            raise CheckpointError(f"{directory}: {printable(name)} fits no matrix in 8 or 4 bits.")
        if codes.shape[1] % scales.shape[1]:
            raise CheckpointError(
                f"{directory}: {printable(name)} does not divide {printable(key)}."
            )
        groups = codes.float().reshape(*scales.shape, -1)
        tensors[key] = (groups * scales.float()[..., None]).flatten(1).bfloat16()
    return tensors


def packed(codes: Tensor) -> Tensor:
    """Pack codes of -8 to 7, [rows, columns], in pairs, first code low, uint8 [rows, columns / 2]."""
    shifted = (codes + ZERO).to(torch.uint8)
    return shifted[:, ::2] | shifted[:, 1::2] << 4


def unpacked(pairs: Tensor) -> Tensor:
    """Unpack codes that `packed` has packed, int8 [rows, columns]."""
    both = torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(1)
    return both.to(torch.int8) - ZERO
