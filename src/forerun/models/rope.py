"""Rotary position embedding (Su et al., arXiv 2104.09864) from a table that grows with the text."""

from __future__ import annotations

import torch
from torch import Tensor

from forerun.models.architecture import Architecture, rope_parameters
from forerun.models.config import as_transformers

_FIRST_ROWS = 1024


Rotation = tuple[Tensor, Tensor, bool]
"""Cosines and sines [B, 1, n, 2 k] of a forward's positions, and whether pairs lie side by side."""


class RotaryTable:
    """Cosines and sines by position, in the model's dtype.

    Computed in float32 and rounded once, as transformers does, so that both agree in any dtype.

    Args:
        inverse_frequencies: [k] in float32, for the first 2 k values of each head.
        scale: factor on cosines and sines.
        dtype, device: type and device of the table.
        pairs: whether values that rotate together lie side by side; otherwise they are k apart.
    """

    def __init__(
        self,
        inverse_frequencies: Tensor,
        scale: float,
        dtype: torch.dtype,
        device: torch.device,
        pairs: bool = False,
    ) -> None:
        self._frequencies, self._scale, self._pairs = inverse_frequencies, scale, pairs
        self._dtype, self._device = dtype, device
        shape = (0, 2 * len(inverse_frequencies))
        empty = torch.empty(shape, dtype=dtype, device=device)
        # Both in one value, so that an interruption cannot separate them.
        self._table = (empty, empty)

    def at(self, positions: Tensor, furthest: int) -> Rotation:
        """The rotation of positions [B, n], none of which is beyond `furthest`."""
        rows = len(self._table[0])
        if furthest >= rows:
            self._grow(max(furthest + 1, 2 * rows, _FIRST_ROWS))
        cos, sin = self._table
        # Padding has position -1, which reads the table's last row; the result is not used.
        return cos[positions][:, None], sin[positions][:, None], self._pairs

    def _grow(self, rows: int) -> None:
        angles = torch.outer(torch.arange(rows, dtype=torch.float32), self._frequencies)
        angles = angles.repeat_interleave(2, -1) if self._pairs else torch.cat((angles, angles), -1)
        cos, sin = (
            (part * self._scale).to(self._device, self._dtype)
            for part in (angles.cos(), angles.sin())
        )
        self._table = (cos, sin)


def rotary_tables(
    shape: Architecture, dtype: torch.dtype, device: torch.device
) -> dict[str | None, RotaryTable]:
    """The rotary tables of a model by kind of layer, see `Architecture.ropes`."""
    kinds = {kind for kind in shape.ropes if kind is not None}
    return {
        kind: RotaryTable(*frequencies(shape, kind), dtype, device, shape.rope_pairs)
        for kind in kinds
    }


def rotated_to(table: RotaryTable | None, vectors: Tensor, positions: Tensor) -> Tensor:
    """Rotate vectors as `forerun.compression.methods.Rotate` says; without a table, return them unchanged."""
    if table is None:
        return vectors
    cos, sin, pairs = table.at(positions[None], int(positions.max()))
    cos, sin = (part[0].to(vectors.dtype) for part in (cos, sin))
    return rotate(vectors, (cos, sin, pairs))


def frequencies(shape: Architecture, kind: str = "") -> tuple[Tensor, float]:
    """Inverse frequencies [k] in float32, and the factor on cosines and sines.

    Args:
        shape: architecture of the model.
        kind: kind of layer, see `Architecture.ropes`.
    """
    inverse, scale = _published(shape, kind)
    if shape.frequency_factors:
        inverse = inverse / torch.tensor(shape.frequency_factors)
    return inverse, scale


def _published(shape: Architecture, kind: str) -> tuple[Tensor, float]:
    rope = rope_parameters(shape.config, kind)
    if rope["rope_type"] == "default":
        rotated = int(shape.head_dim * rope.get("partial_rotary_factor", 1.0))
        exponents = torch.arange(0, rotated, 2, dtype=torch.float32) / rotated
        return 1.0 / (rope["rope_theta"] ** exponents), 1.0
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    made, named = as_transformers(shape.config), {"layer_type": kind} if kind else {}
    frequencies, scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](
        made, torch.device("cpu"), seq_len=shape.max_context, **named
    )
    return frequencies, float(scale)


def rotate(vectors: Tensor, rotation: Rotation) -> Tensor:
    """Rotate queries or keys [B, heads, n, head_dim], of each head the first values that have cosines."""
    cos, sin, pairs = rotation
    size = cos.shape[-1]
    if size < vectors.shape[-1]:
        rest = vectors[..., size:]
        return torch.cat((rotate(vectors[..., :size], rotation), rest), dim=-1)
    if pairs:
        turned = torch.stack((-vectors[..., 1::2], vectors[..., ::2]), dim=-1).flatten(-2)
        return vectors * cos + turned * sin
    low, high = vectors.chunk(2, dim=-1)
    return vectors * cos + torch.cat((-high, low), dim=-1) * sin
