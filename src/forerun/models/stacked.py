"""Experts that are published in stacks, as gpt-oss does, read as the single matrices that layouts name."""

from __future__ import annotations

import re
from typing import NamedTuple

import torch
from torch import Tensor

from forerun.errors import CheckpointError
from forerun.models.sources import Source

# Twice the values of four bits: a sign and e2m1.
_FOUR_BITS = torch.tensor([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]).float()
_STACK = re.compile(r"(.*\.experts\.)(gate_up|down)_proj(_bias|_blocks)?")
# Rows of gate and up take turns.
_ROWS = {
    "gate_up": {"gate": slice(0, None, 2), "up": slice(1, None, 2)},
    "down": {"down": slice(None)},
}


class _Part(NamedTuple):
    """Rows of one expert in a stack."""

    stack: str
    expert: int
    rows: slice


class StackedExperts:
    """A source with a tensor for each expert where another has stacks; implements `Source`.

    Stacks are [experts, inputs, outputs], or MXFP4: `_blocks` [experts, outputs, inputs / 32, 16] of two
    values a byte and `_scales` [experts, outputs, inputs / 32], exponents of 2 plus 127.

    Args:
        source: a checkpoint with stacks.
    """

    def __init__(self, source: Source) -> None:
        self.name, self._source = source.name, source
        self._parts: dict[str, _Part] = {}
        self.shapes = dict(source.shapes)
        self._last: tuple[tuple[str, int], Tensor] | None = None
        for key in source.shapes:
            if found := _STACK.fullmatch(key):
                self._take_apart(key, *found.groups())

    def _take_apart(self, key: str, prefix: str, name: str, ending: str | None) -> None:
        """Name the matrices of a stack; one of another shape stays, and is refused as unexpected."""
        whole = self.shapes[key]
        scales = key.replace("_blocks", "_scales")
        if ending == "_blocks":
            if whole[-1:] != (16,) or self.shapes.get(scales) != whole[:-1]:
                return
            del self.shapes[scales]
            whole = (*whole[:-2], 32 * whole[-2])
        elif ending is None:
            whole = (*whole[:1], *whole[:0:-1])
        if len(whole) != (2 if ending == "_bias" else 3):
            return
        del self.shapes[key]
        kind = "bias" if ending == "_bias" else "weight"
        for expert in range(whole[0]):
            for half, rows in _ROWS[name].items():
                part = f"{prefix}{expert}.{half}_proj.{kind}"
                self._parts[part] = _Part(key, expert, rows)
                self.shapes[part] = (len(range(whole[1])[rows]), *whole[2:])

    def read(self, key: str) -> Tensor:
        """Read a tensor; onto the CPU if it comes from a file."""
        part = self._parts.get(key)
        if part is None:
            return self._source.read(key)
        of = part[:2]
        if self._last is None or self._last[0] != of:
            self._last = of, self._of_expert(*of)
        return self._last[1][part.rows]

    def slice(self, key: str, dim: int, start: int, stop: int) -> Tensor:
        """Read a part of a tensor along one of its first two dimensions."""
        if key not in self._parts:
            return self._source.slice(key, dim, start, stop)
        return self.read(key).narrow(dim, start, stop - start)

    def _of_expert(self, stack: str, expert: int) -> Tensor:
        def entry(key: str) -> Tensor:
            return self._source.slice(key, 0, expert, expert + 1)[0]

        if stack.endswith("_blocks"):
            blocks, scales = entry(stack), entry(stack.replace("_blocks", "_scales"))
            if not blocks.dtype == scales.dtype == torch.uint8:
                raise CheckpointError(
                    f"{self.name}: {stack} and its scales must be bytes of MXFP4; download it again."
                )
            return dequantized(blocks, scales)
        return entry(stack) if stack.endswith("_bias") else entry(stack).t()


def dequantized(blocks: Tensor, scales: Tensor) -> Tensor:
    """MXFP4 blocks [rows, n, 16] with scales [rows, n] as bfloat16 [rows, 32 n], exactly."""
    codes = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)
    values = torch.ldexp(_FOUR_BITS[codes.int()], scales.int()[..., None] - 128)
    return values.flatten(-2).bfloat16()


def taken_apart(source: Source) -> Source:
    """The source, with a tensor for each expert if it has stacks of them."""
    return StackedExperts(source) if any(map(_STACK.fullmatch, source.shapes)) else source
