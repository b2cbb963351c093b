"""Mean keys of whole blocks of a cache, by which views choose among them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from forerun.core import BLOCK_SIZE


class BlockMeans:
    """Mean keys of one layer, each computed once, and again when its row has changed.

    Args:
        shape: rows, key heads, tokens a row, size of a head.
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
            read: keys [kv_heads, slots, head_dim] of some slots of a row.
        """
        computed, blocks = self._computed[row], length // BLOCK_SIZE
        if computed < blocks:
            keys = read(row, slice(computed * BLOCK_SIZE, blocks * BLOCK_SIZE))
            whole = keys.reshape(len(keys), -1, BLOCK_SIZE, keys.shape[-1])
            self.means[row, :, computed:blocks] = whole.to(self.means.dtype).mean(2)
            self._computed[row] = blocks

    def forget(self, row: int, length: int) -> None:
        """The tokens of a row after the first `length` change."""
        self._computed[row] = min(self._computed[row], length // BLOCK_SIZE)
