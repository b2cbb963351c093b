"""Formats of stored numbers: their bytes, including their share of scales and offsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forerun.core import BLOCK_SIZE

if TYPE_CHECKING:
    from forerun.core import View

CODED = ("int8", "int4")
"""Precisions of a cache whose numbers are codes."""
GROUPS = (64, 32, 16)
"""Numbers of dimensions of a cached head that may share a scale."""


def _coded(bits: int, group: int, shared: int = 1) -> float:
    """Bytes of a code whose group shares so many 16-bit numbers: a scale, or scale and offset."""
    return bits / 8 + 2 * shared / group


@dataclass(frozen=True)
class Precision:
    """A number format, and the peak of a device that applies to its products.

    Args:
        name: name of the format.
        bytes_per_value: bytes of a number in memory, including its part of the scales.
        computed_in: format of the arithmetic: "fp32", "fp16" (any 16-bit format) or "fp8".
    """

    name: str
    bytes_per_value: float
    computed_in: str


PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("fp32", 4.0, "fp32"),
        Precision("bf16", 2.0, "fp16"),
        Precision("fp16", 2.0, "fp16"),
        Precision("fp8", 1.0, "fp8"),
        # Only weights are stored so; they are multiplied as 16-bit numbers (arXiv 2210.17323).
        Precision("int8", 1.0, "fp16"),
        # 32 weights share a 16-bit scale: 18 bytes, as in Q4_0 of llama.cpp.
        Precision("int4", _coded(4, 32), "fp16"),
    )
}
"""Formats of weights on hardware that is not at hand."""

QUANTIZED = {"int8": _coded(8, 64), "int4": _coded(4, 32)}
"""Bytes of a weight that our CPU kernels quantize."""

STORED_FORMATS = {
    "fp32": 4.0,
    "bf16": 2.0,
    "int8": _coded(8, 32),
    "int8_offset": _coded(8, 32, shared=2),
    "int4": _coded(4, 32),
    "int4_offset": _coded(4, 32, shared=2),
    # Blocks of 256 share two 16-bit numbers, their groups have one byte or two.
    "q4_k": _coded(4, 32) + 4 / 256,
    "q5_k": _coded(5, 32) + 4 / 256,
    "q6_k": _coded(6, 32) + 4 / 256,
    "q5_0": _coded(5, 32),
    "iq4_nl": _coded(4, 32),
    # One byte for each group of 32.
    "iq4_xs": _coded(4, 64) + 4 / 256,
}
"""Bytes of a weight that our CPU kernels hold as its file stores it."""


def group_of(head_dim: int) -> int | None:
    """Number of dimensions that share a scale; None for heads that no group size divides."""
    return next((group for group in GROUPS if head_dim % group == 0), None)


def bytes_per_value(kv_dtype: str, head_dim: int, auto: int, *, coarse: bool = False) -> float:
    """Bytes of one number in a cache, including its share of a scale.

    Args:
        kv_dtype: precision of the cache.
        head_dim: size of a head.
        auto: bytes of a number if the precision is `auto`.
        coarse: count only the bytes that a coarse view reads.
    """
    if kv_dtype not in CODED:
        return float({"fp32": 4, "bf16": 2}.get(kv_dtype, auto))
    return _coded(8 if kv_dtype == "int8" and not coarse else 4, group_of(head_dim) or head_dim)


def bytes_of_text(
    context: int, heads: tuple[int, int], kv_dtype: str, auto: int, view: View | None = None
) -> float:
    """Approximate bytes of a text's keys and values that one token reads in a layer.

    Args:
        context: tokens of the text.
        heads: number of key heads and size of one.
        kv_dtype, auto: as in `bytes_per_value`.
        view: the part of the text that is read; None for all.
    """
    number = bytes_per_value(kv_dtype, heads[1], auto, coarse=view is not None and view.coarse)
    read = context if view is None else view.tokens(context)
    means = 0.0
    if view is not None and view.blocks:
        # Means in fp32 of the blocks that are not read; for the few that are read, their keys dominate.
        means = (context - read) / BLOCK_SIZE * 4
    return heads[0] * heads[1] * (2 * read * number + means)
