"""Blocks of llama.cpp's formats as the kernels hold them: byte codes with a scale for each group of 32.

Some formats also have an offset for each group. Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, MXFP4 and IQ4_NL are held
exactly, and so are Q3_K, Q4_K, Q5_K, Q6_K and IQ4_XS, whose scales are products of two numbers. All other
blocks are quantized again, to 8 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind
from gguf.quants import IQ4_NL, MXFP4, Q4_K, dequantize
from numpy.typing import NDArray
from torch import Tensor

from forerun.errors import UnsupportedModelError

_OTHER = "take another quantization of the model, such as Q8_0"


# Values that are not finite are refused later, when they are loaded.
@np.errstate(over="ignore", invalid="ignore")
def values_of(rows: NDArray[np.uint8], kind: Kind) -> Tensor:
    """The values of rows [rows, bytes of a row], in float32 unless they are stored in 16 bits.

    Raises:
        UnsupportedModelError: for a type that the package gguf cannot read.
    """
    if kind == Kind.F16:
        return torch.from_numpy(rows.view(np.float16).copy())
    if kind == Kind.BF16:
        return torch.from_numpy(rows.view(np.int16).copy()).view(torch.bfloat16)
    try:
        return torch.from_numpy(np.array(dequantize(rows, kind), dtype=np.float32))
    except NotImplementedError:
        raise UnsupportedModelError(
            f"tensors of type {kind.name} are not read; {_OTHER}."
        ) from None


def refuse_unread(name: str, key: str, kind: Kind) -> None:
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
def _is_read(kind: Kind) -> bool:
    try:
        values_of(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except UnsupportedModelError:
        return False
    return True


GROUP = 32

_Bytes = NDArray[np.uint8]
# Of numbers in fp16.
_LEAST_POWER, _MOST_POWER = -24, 15
_ZEROS = {"int4": 8, "int8": 128}
"""The code of weight zero in formats without an offset."""


@dataclass(frozen=True)
class Groups:
    """Rows of a matrix in groups of 32: a weight is scale * (code - zero), or scale * code + offset.

    Args:
        precision: `int4` or `int8`, with a zero of 8 or 128, or `int4_offset` or `int8_offset`.
        codes: uint8 [rows, cols].
        scales: fp16 [rows, cols / 32].
        offsets: fp16 [rows, cols / 32]; None in formats without offsets.
    """

    precision: str
    codes: _Bytes
    scales: NDArray[np.float16]
    offsets: NDArray[np.float16] | None = None

    @np.errstate(over="ignore", invalid="ignore")
    def values(self) -> NDArray[np.float32]:
        """The weights, [rows, cols]."""
        shape = (*self.scales.shape, GROUP)
        codes = self.codes.reshape(shape).astype(np.float32)
        scales = self.scales.astype(np.float32)[..., None]
        if self.offsets is None:
            weights = scales * (codes - _ZEROS[self.precision])
        else:
            weights = scales * codes + self.offsets.astype(np.float32)[..., None]
        return weights.reshape(self.codes.shape)


@dataclass(frozen=True)
class SuperBlocks:
    """Rows of a matrix in llama.cpp's blocks, number for number.

    Args:
        precision: `q4_k`, `q5_k`, `q6_k`, with a zero of 32 and groups of 16 columns, `q5_0`, with a
            zero of 16, or `iq4_xs` or `iq4_nl`, whose codes are places in a list of values.
        codes: uint8 [rows, cols].
        scales: uint16 [rows, groups]: fp16 in `q5_0` and `iq4_nl`, else two bytes: that of the scale
            and, in `q4_k` and `q5_k`, that of the offset.
        offsets: fp16 [rows, 2 * blocks]: what those bytes are multiplied with, two for each block of
            256 columns; None in `q5_0` and `iq4_nl`.
    """

    precision: str
    codes: _Bytes
    scales: NDArray[np.uint16]
    offsets: NDArray[np.float16] | None


# Scales that are not finite are refused later, when they are loaded.
@np.errstate(over="ignore", invalid="ignore")
def codes_of(rows: _Bytes, kind: Kind) -> Groups | SuperBlocks:
    """Stored rows, [rows, bytes of a row], in the precision that `precision_of` gives them.

    Raises:
        UnsupportedModelError: for a type that the package gguf cannot read.
    """
    split = _SPLIT.get(kind)
    return _quantized(values_of(rows, kind).float().numpy()) if split is None else split(rows)


def precision_of(kind: Kind, cols: int) -> str:
    """The precision on the kernels of rows of `cols` weights of a type."""
    precision = _PRECISIONS.get(kind, "int8")
    return "int8" if precision in ("q5_0", "iq4_nl") and cols % (2 * GROUP) else precision


def _mxfp4(rows: _Bytes) -> Groups:
    exponents, nibbles = _fields(rows, 1, 16)
    powers = exponents[..., 0].astype(np.int32) - 128
    # Beyond fp16's powers of two, weights are next to nothing or enormous.
    if powers.min() < _LEAST_POWER or powers.max() > _MOST_POWER:
        return _quantized(values_of(rows, Kind.MXFP4).numpy())
    return _listed(MXFP4.kvalues, _nibbles(nibbles), np.ldexp(np.float16(1), powers))


def _listed(values: tuple[int, ...], places: _Bytes, scales: NDArray[np.floating[Any]]) -> Groups:
    """Weights that are scaled values of a list of 16, from their places in it."""
    codes = (np.array(values, np.int16) + 128).astype(np.uint8)
    return Groups("int8", codes[places], scales.astype(np.float16))


def _iq4_nl(rows: _Bytes) -> Groups | SuperBlocks:
    fields = _fields(rows, 2, 16)
    scales, places = _halves(fields[0]), _nibbles(fields[1])
    if precision_of(Kind.IQ4_NL, places.shape[1]) == "iq4_nl":
        return SuperBlocks("iq4_nl", places, scales.view(np.uint16), None)
    return _listed(IQ4_NL.kvalues, places, scales)


def _iq4_xs(rows: _Bytes) -> SuperBlocks:
    scale, high, low, nibbles = _fields(rows, 2, 2, 4, 128)
    # Of eight groups the low four bits of a step lie in four bytes, the high two in two.
    low = (low[..., None] >> np.array([0, 4], np.uint8)) & np.uint8(15)
    high = (high[..., None] >> np.arange(0, 8, 2, dtype=np.uint8)) & np.uint8(3)
    steps = low.reshape(*low.shape[:2], 8) + np.uint8(16) * high.reshape(*low.shape[:2], 8)
    places = _nibbles(nibbles.reshape(len(rows), -1, 16))
    return _signed("iq4_xs", places, steps - np.uint8(32), scale)


def _fields(rows: _Bytes, *sizes: int) -> list[_Bytes]:
    """The fields of all blocks, each [rows, blocks, bytes]."""
    blocks = rows.reshape(len(rows), -1, sum(sizes))
    return np.split(blocks, np.cumsum(sizes)[:-1], axis=-1)


def _halves(field: _Bytes) -> NDArray[np.float16]:
    """A field with one fp16 number per block, [rows, blocks]."""
    return np.ascontiguousarray(field).view(np.float16)[..., 0]


def _nibbles(field: _Bytes) -> _Bytes:
    """Split [rows, blocks, 16] into codes [rows, 32 * blocks]: all low halves, then all high halves."""
    codes = np.empty((*field.shape[:2], 2, field.shape[2]), np.uint8)
    np.bitwise_and(field, 15, out=codes[:, :, 0])
    np.right_shift(field, 4, out=codes[:, :, 1])
    return codes.reshape(len(field), -1)


def _fifth_bits(field: _Bytes) -> _Bytes:
    """Spread [rows, blocks, 4] into the fifth bit of each code, in its place, [rows, 32 * blocks]."""
    bits = np.unpackbits(np.ascontiguousarray(field), axis=-1, bitorder="little")
    return (bits * np.uint8(16)).reshape(len(field), -1)


def _q8_0(rows: _Bytes) -> Groups:
    scales, codes = _fields(rows, 2, 32)
    return Groups("int8", (codes + np.uint8(128)).reshape(len(rows), -1), _halves(scales))


def _q4_0(rows: _Bytes) -> Groups:
    scales, codes = _fields(rows, 2, 16)
    return Groups("int4", _nibbles(codes), _halves(scales))


def _q4_1(rows: _Bytes) -> Groups:
    scales, offsets, codes = _fields(rows, 2, 2, 16)
    return Groups("int4_offset", _nibbles(codes), _halves(scales), _halves(offsets))


def _q5_0(rows: _Bytes) -> Groups | SuperBlocks:
    fields = _fields(rows, 2, 4, 16)
    scales, codes = _halves(fields[0]), _nibbles(fields[2]) + _fifth_bits(fields[1])
    if precision_of(Kind.Q5_0, codes.shape[1]) == "q5_0":
        return SuperBlocks("q5_0", codes, scales.view(np.uint16), None)
    return Groups("int8", codes + np.uint8(128 - 16), scales)


def _q5_1(rows: _Bytes) -> Groups:
    scales, offsets, high, low = _fields(rows, 2, 2, 4, 16)
    codes = _nibbles(low) + _fifth_bits(high)
    return Groups("int8_offset", codes, _halves(scales), _halves(offsets))


def _blocks(
    precision: str, codes: _Bytes, scale: _Bytes, least: _Bytes, packed: _Bytes
) -> SuperBlocks:
    """Blocks of eight groups; `packed` holds six bits of each scale and offset."""
    steps = Q4_K.get_scale_min(packed.reshape(-1, 12))
    pairs = np.stack(steps, -1).astype(np.uint8).reshape(len(codes), -1)
    factors = np.stack([_halves(scale), -_halves(least)], -1)
    return SuperBlocks(precision, codes, pairs.view(np.uint16), factors.reshape(len(codes), -1))


def _pairs(field: _Bytes) -> _Bytes:
    """Split [rows, blocks, 128] into codes: of each 32 bytes the low halves, then the high ones."""
    return _nibbles(field.reshape(len(field), -1, 32))


def _q4_k(rows: _Bytes) -> SuperBlocks:
    scale, least, packed, codes = _fields(rows, 2, 2, 12, 128)
    return _blocks("q4_k", _pairs(codes), scale, least, packed)


def _two_bits(field: _Bytes) -> _Bytes:
    """Spread two bits of each code: of each 32 bytes the lowest bits of all, then the next ones."""
    fields = field.reshape(len(field), -1, 1, 32)
    bits = (fields >> np.arange(0, 8, 2, dtype=np.uint8)[:, None]) & np.uint8(3)
    return bits.reshape(len(field), -1)


def _one_bit(field: _Bytes) -> _Bytes:
    """Spread one bit of each code, [rows, blocks, 32]: bit g of byte i is that of value i of group g."""
    bits = (field[:, :, None] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)
    return bits.reshape(len(field), -1)


def _signed(precision: str, codes: _Bytes, steps: _Bytes, scale: _Bytes) -> SuperBlocks:
    """Blocks without offsets; `steps` holds a signed byte of each scale."""
    halves = _halves(scale)
    factors = np.stack([halves, np.zeros_like(halves)], -1).reshape(len(codes), -1)
    pairs = steps.reshape(len(codes), -1).astype(np.uint16)
    return SuperBlocks(precision, codes, pairs, factors)


def _q3_k(rows: _Bytes) -> SuperBlocks:
    high, low, packed, scale = _fields(rows, 32, 64, 12, 2)
    codes = _two_bits(low) + np.uint8(4) * _one_bit(high) + np.uint8(32 - 4)
    # Of sixteen groups the low four bits of a step lie in eight bytes, the high two in four.
    least = _nibbles(packed[..., :8]).reshape(*packed.shape[:2], 16)
    most = (packed[..., None, 8:] >> np.arange(0, 8, 2, dtype=np.uint8)[:, None]) & np.uint8(3)
    steps = least + np.uint8(16) * most.reshape(least.shape) - np.uint8(32)
    return _signed("q6_k", codes, steps, scale)


def _q6_k(rows: _Bytes) -> SuperBlocks:
    low, high, steps, scale = _fields(rows, 128, 64, 16, 2)
    codes = _nibbles(low.reshape(len(low), -1, 64)) + np.uint8(16) * _two_bits(high)
    return _signed("q6_k", codes, steps, scale)


def _q5_k(rows: _Bytes) -> SuperBlocks:
    scale, least, packed, high, low = _fields(rows, 2, 2, 12, 32, 128)
    return _blocks("q5_k", _pairs(low) + np.uint8(16) * _one_bit(high), scale, least, packed)


def _quantized(values: NDArray[np.float32]) -> Groups:
    """Weights of any kind, quantized to 8 bits."""
    grouped = values.reshape(len(values), -1, GROUP)
    scales = (np.abs(grouped).max(axis=-1) / 127).astype(np.float16)
    steps = scales.astype(np.float32)[..., None]
    whole = np.rint(np.divide(grouped, steps, out=np.zeros_like(grouped), where=steps > 0))
    codes = (whole.clip(-127, 127) + 128).astype(np.uint8)
    return Groups("int8", codes.reshape(values.shape), scales)


_SPLIT: dict[Kind, Callable[[_Bytes], Groups | SuperBlocks]] = {
    Kind.Q8_0: _q8_0,
    Kind.Q4_0: _q4_0,
    Kind.Q4_1: _q4_1,
    Kind.Q5_0: _q5_0,
    Kind.Q5_1: _q5_1,
    Kind.Q4_K: _q4_k,
    Kind.Q5_K: _q5_k,
    Kind.Q6_K: _q6_k,
    Kind.Q3_K: _q3_k,
    Kind.MXFP4: _mxfp4,
    Kind.IQ4_NL: _iq4_nl,
    Kind.IQ4_XS: _iq4_xs,
}
_PRECISIONS: dict[Kind, str] = {
    Kind.F32: "fp32",
    Kind.F16: "bf16",
    Kind.BF16: "bf16",
    Kind.Q4_0: "int4",
    Kind.Q4_1: "int4_offset",
    Kind.Q4_K: "q4_k",
    Kind.Q5_0: "q5_0",
    Kind.Q5_1: "int8_offset",
    Kind.Q5_K: "q5_k",
    Kind.Q3_K: "q6_k",
    Kind.Q6_K: "q6_k",
    Kind.IQ4_NL: "iq4_nl",
    Kind.IQ4_XS: "iq4_xs",
}
