"""Mean keys of whole blocks of a cache, by which views select blocks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from forerun.core import BLOCK_SIZE


class BlockMeans:
    """Mean keys of one layer; each is computed once, and again after its row has changed.

    Args:
        shape: rows, key heads, tokens per row, size of a head.
        dtype, device: of the means.
    """

    def __init__(
        self, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device
    ) -> None:
        rows, heads, capacity, size = shape
        blocks = (rows, heads, capacity // BLOCK_SIZE, size)
        self.means = torch.zeros(blocks, dtype=dtype, device=device)
        self._computed = [0] * rows

    def update(self, row: int, length: int, read: Callable[[int, slice], Tensor]) -> None:
        """Compute the means of the whole blocks of a row's first `length` tokens.

        Args:
            read: returns the keys [kv_heads, slots, head_dim] in a range of slots of a row.
        """
        computed, blocks = self._computed[row], length // BLOCK_SIZE
        if computed < blocks:
            keys = read(row, slice(computed * BLOCK_SIZE, blocks * BLOCK_SIZE))
            whole = keys.reshape(len(keys), -1, BLOCK_SIZE, keys.shape[-1])
            self.means[row, :, computed:blocks] = whole.to(self.means.dtype).mean(2)
            self._computed[row] = blocks

    def forget(self, row: int, length: int) -> None:
        """Discard means that depend on tokens of a row after the first `length`, because those change."""
        self._computed[row] = min(self._computed[row], length // BLOCK_SIZE)
