"""Selection of the likeliest tokens from logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# Columns of a block: the likeliest tokens are in the blocks with the largest maxima. Ten times faster over
# 150,000 columns, and no gain over few.
_BLOCK, _LEAST_BLOCKS = 64, 128


def likeliest(logits: Tensor, count: int) -> Tensor:
    """Ids of the largest logits of each row, [n, V] -> [n, min(count, V)], the largest first."""
    import torch

    size = logits.shape[1]
    whole = size - size % _BLOCK
    if whole < _LEAST_BLOCKS * _BLOCK:
        return logits.topk(min(count, size)).indices
    blocks = logits[:, :whole].reshape(len(logits), -1, _BLOCK).amax(2).topk(count).indices
    ids = (blocks[:, :, None] * _BLOCK + torch.arange(_BLOCK, device=logits.device)).flatten(1)
    if whole < size:
        rest = torch.arange(whole, size, device=logits.device)
        ids = torch.cat([ids, rest.expand(len(ids), -1)], 1)
    best: Tensor = ids.gather(1, logits.gather(1, ids).topk(count).indices)
    return best
