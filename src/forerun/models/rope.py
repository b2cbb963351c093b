"""Rotary position embedding (Su et al., arXiv 2104.09864) from a table that grows with the text."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from forerun.models.architecture import Architecture
from forerun.models.config import as_transformers

_FIRST_ROWS = 1024


class RotaryTable:
    """Cosines and sines by position, in the model's dtype.

    Computed in float32 and rounded once, as transformers does, so that both agree in any dtype.

    Args:
        inverse_frequencies: [head_dim / 2], in float32.
        scale: factor on cosines and sines.
        dtype, device: type and device of the table.
    """

    def __init__(
        self,
        inverse_frequencies: Tensor,
        scale: float,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._frequencies, self._scale = inverse_frequencies, scale
        self._dtype, self._device = dtype, device
        shape = (0, 2 * len(inverse_frequencies))
        empty = torch.empty(shape, dtype=dtype, device=device)
        # Both in one value, so that an interruption cannot separate them.
        self._table = (empty, empty)

    def at(self, positions: Tensor, furthest: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines [B, 1, n, head_dim] of positions [B, n], none of which is beyond `furthest`."""
        rows = len(self._table[0])
        if furthest >= rows:
            self._grow(max(furthest + 1, 2 * rows, _FIRST_ROWS))
        cos, sin = self._table
        # Padding has position -1, which reads the table's last row; the result is not used.
        return cos[positions][:, None], sin[positions][:, None]

    def _grow(self, rows: int) -> None:
        angles = torch.outer(torch.arange(rows, dtype=torch.float32), self._frequencies)
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = (
            (part * self._scale).to(self._device, self._dtype)
            for part in (angles.cos(), angles.sin())
        )
        self._table = (cos, sin)


def rotary_table(
    shape: Architecture, dtype: torch.dtype, device: torch.device
) -> RotaryTable | None:
    """The rotary table of a model; None for learned positions."""
    if shape.family == "gpt2":
        return None
    return RotaryTable(*frequencies(shape), dtype, device)


def mean_rotated(table: RotaryTable | None, vectors: Tensor, positions: Tensor) -> Tensor:
    """Rotate vectors as `forerun.compression.base.Rotate` says; without a table, return them unchanged."""
    if table is None:
        return vectors
    cos, sin = table.at(positions, int(positions.max()))
    cos, sin = (part[:, 0].to(vectors.dtype).mean(1) for part in (cos, sin))
    return rotate(vectors, (cos, sin))


def frequencies(shape: Architecture) -> tuple[Tensor, float]:
    """Inverse frequencies [head_dim / 2] in float32, and the factor on cosines and sines."""
    inverse, scale = _published(shape.config, shape.head_dim)
    if shape.frequency_factors:
        inverse = inverse / torch.tensor(shape.frequency_factors)
    return inverse, scale


def _published(config: Any, head_dim: int) -> tuple[Tensor, float]:
    rope = config.rope_parameters
    if rope["rope_type"] == "default":
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        return 1.0 / (rope["rope_theta"] ** exponents), 1.0
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    made = as_transformers(config)
    frequencies, scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](made, torch.device("cpu"))
    return frequencies, float(scale)


def rotate(vectors: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate queries or keys [B, heads, n, head_dim] by cosines and sines [B, 1, n, head_dim]."""
    cos, sin = rotation
    low, high = vectors.chunk(2, dim=-1)
    return vectors * cos + torch.cat((-high, low), dim=-1) * sin
