"""Keys or values stored as codes: integer multiples of one scale per token and group of dimensions.

The codes of a token depend on that token alone, so they are the same whatever was drafted, kept or
read again. They equal those of the compiled kernels (csrc/src/coded_head.h). Codes of int4 are -8
to 7. Codes of int8 are -128 to 119: 16 times an upper nibble plus a lower one, each -8 to 7, so
that the upper nibbles alone are nearly the codes of int4. Scales are bfloat16, negative if the
largest value is positive.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from forerun.costs.precision import group_of

# Offsets that are added to codes when they are stored: to one nibble, and to both nibbles of a byte.
_NIBBLE = 8
_BYTE = 8 * 16 + 8


class Codes:
    """A tensor [rows, kv_heads, capacity, head_dim] stored as codes, but written and read as numbers.

    It is indexed by slices of its first three dimensions.

    Args:
        shape: shape of the tensor.
        kv_dtype: `int8` or `int4`.
        dtype: type of the numbers read.
        device: device of the codes.
        turned: store the numbers turned, as keys are: see `turn`.
    """

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        kv_dtype: str,
        dtype: torch.dtype,
        device: torch.device,
        turned: bool = False,
    ) -> None:
        group = group_of(shape[-1])
        assert group is not None
        self.group, self.wide, self.dtype = group, kv_dtype == "int8", dtype
        self.shape, self.turned = shape, turned
        size = shape[-1] if self.wide else shape[-1] // 2
        self.codes = torch.zeros((*shape[:-1], size), dtype=torch.uint8, device=device)
        scales = (*shape[:-1], shape[-1] // group)
        self.scales = torch.zeros(scales, dtype=torch.bfloat16, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes

    def __setitem__(self, index: Any, values: Tensor) -> None:
        """Store numbers [..., head_dim]."""
        values = values.float()
        codes, scales = self._encode(turn(values, self.group) if self.turned else values)
        self.codes[index], self.scales[index] = codes, scales

    def __getitem__(self, index: Any) -> Tensor:
        return self.read(index)

    def read(self, index: Any, *, coarse: bool = False, as_stored: bool = False) -> Tensor:
        """Numbers at a slice of rows, heads and slots.

        Args:
            coarse: read only the upper nibbles of int8.
            as_stored: leave turned numbers turned, for products with queries that `turn` has
                turned.
        """
        codes, scales = self.codes[index], self.scales[index].float()
        if not self.wide:
            codes = torch.cat((codes & 15, codes >> 4), -1)
        zero, step = (_BYTE, 1) if self.wide else (_NIBBLE, 1)
        if coarse and self.wide:
            codes, zero, step = codes >> 4, _NIBBLE, 16
        whole = codes.float() - zero
        values = (_split(whole, self.group) * (scales * step)[..., None]).flatten(-2)
        if self.turned and not as_stored:
            values = turn(values, self.group) / self.group
        return values.to(self.dtype)

    def _encode(self, values: Tensor) -> tuple[Tensor, Tensor]:
        least, most, zero = (-128, 119, _BYTE) if self.wide else (-8, 7, _NIBBLE)
        groups = _split(values, self.group)
        above, below = groups.amax(-1).clamp(min=0), (-groups).amax(-1).clamp(min=0)
        sign = torch.where(above > below, -1.0, 1.0)
        scales = torch.maximum(
            torch.maximum(above, below) / -least, torch.minimum(above, below) / most
        )
        finite = groups.isfinite().all(-1)
        # Smaller scales count as zero: their reciprocal may not exist.
        scales = torch.where(finite & (scales >= 2.0**-100), scales, 0.0)
        # Rounded away from zero, so that no code leaves its range.
        bits = (scales.view(torch.int32) + 0xFFFF) >> 16 << 16
        scales = bits.view(torch.float32)
        inverse = torch.where(scales > 0, sign / scales, 0.0)
        whole = (groups.nan_to_num(0.0, 0.0, 0.0) * inverse[..., None]).clamp(least, most).round()
        codes = (whole + zero).to(torch.uint8).flatten(-2)
        if not self.wide:
            low, high = codes.chunk(2, -1)
            codes = low | high << 4
        stored = torch.where(finite, scales * sign, torch.nan).to(torch.bfloat16)
        return codes, stored


def _split(values: Tensor, *sizes: int) -> Tensor:
    """The last dimension split into dimensions of the given sizes."""
    return values.reshape(*values.shape[:-1], -1, *sizes)


def turn(values: Tensor, group: int) -> Tensor:
    """Multiply groups of the last dimension by a Hadamard matrix.

    It spreads outliers of a few dimensions over all (QuaRot, arXiv 2404.00456). It makes products
    of two vectors `group` times larger; applied twice, it returns the vector times `group`.
    """
    shape, half = values.shape, 1
    while half < group:
        first, second = _split(values, 2, half).unbind(-2)
        values = torch.stack((first + second, first - second), -2).reshape(shape)
        half *= 2
    return values


Store = Tensor | Codes
"""Keys or values of a layer."""


def parts(store: Store) -> tuple[Tensor, ...]:
    """The tensors [rows, kv_heads, capacity, …] of a store; a token has its slot in each of them."""
    return (store.codes, store.scales) if isinstance(store, Codes) else (store,)
