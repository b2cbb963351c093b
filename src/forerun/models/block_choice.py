"""Selection of text blocks that a view reads besides its window: those that matter most to a token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.core import BLOCK_SIZE
from forerun.kv_cache import Appending

_TOKENS_AT_ONCE = 8


@dataclass(frozen=True)
class BlockChoice:
    """The blocks that each key head may select for each new token, by their mean keys.

    Means of keys represent their blocks as in MoBA (arXiv 2502.13189).

    Attributes:
        hidden: whole blocks of committed text that end before a token's window, bool [B, n,
            blocks].
        sinks: slots before this one are read anyway.
        count: most blocks that are read.
    """

    hidden: Tensor
    sinks: int
    count: int

    @classmethod
    def of(cls, appending: Appending, sinks: int, window: int, count: int) -> BlockChoice | None:
        """The blocks that the tokens of a batch may select; None if there are none.

        Args:
            appending: slots of the tokens in the cache.
            sinks, window, count: see `forerun.core.View`.
        """
        batch, positions = appending.batch, appending.positions
        if max(map(max, batch.positions)) + 1 - window < BLOCK_SIZE:
            return None
        ends = torch.arange(1, appending.total // BLOCK_SIZE + 1, device=positions.device)
        ends *= BLOCK_SIZE
        hidden = (ends <= (positions + 1 - window)[:, :, None]) & (ends > sinks)
        tree_mask = batch.tree_mask
        if tree_mask is not None:
            # The columns of the mask begin at the end of a row's text, or before it.
            text = torch.tensor(appending.starts, device=ends.device)
            text -= tree_mask.shape[-1] - batch.width
            hidden &= ends <= text[:, None, None]
        return cls(hidden, sinks, min(count, len(ends)))

    def read(self, appending: Appending, layer: int, query: Tensor) -> Chosen:
        """Select the blocks whose mean key has the largest product with the sum of a token's queries.

        Args:
            appending: slots of the tokens in the cache.
            layer: layer of the model whose keys are used.
            query: [B, heads, n, head_dim], turned as the keys are read.
        """
        means = appending.block_means(layer)
        batch, _, width, size = query.shape
        heads = means.shape[1]
        summed = query.reshape(batch, heads, -1, width, size).to(means.dtype).sum(2)
        scores = (summed @ means.mT).nan_to_num(-torch.inf, torch.inf, -torch.inf)
        best = scores.masked_fill(~self.hidden[:, None], -torch.inf).topk(self.count)
        slots = torch.arange(BLOCK_SIZE, device=query.device)
        slots = (best.indices[..., None] * BLOCK_SIZE + slots).flatten(-2)
        there = best.values.isneginf().logical_not().repeat_interleave(BLOCK_SIZE, -1)
        there &= slots >= self.sinks
        mask = torch.zeros_like(slots, dtype=query.dtype).masked_fill_(~there, -torch.inf)
        return Chosen(appending, layer, slots, mask)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Slots of the cache that only some tokens read; read a few tokens at a time, because they are copied.

    Attributes:
        appending: slots of the tokens in the cache.
        layer: layer of the model.
        slots: [B, kv_heads, n, s].
        mask: additive, of the same shape.
    """

    appending: Appending
    layer: int
    slots: Tensor
    mask: Tensor

    def scores(self, folded: Tensor) -> Tensor:
        """Scores [B, kv_heads, groups * n, s] of queries [B, kv_heads, groups * n, head_dim]."""
        pieces = [
            queries @ keys.mT for queries, (keys, _) in zip(*self._pieces(folded), strict=True)
        ]
        return self._folded(torch.cat(pieces, 2) + self.mask[:, :, :, None])

    def mix(self, weights: Tensor) -> Tensor:
        """Values [B, kv_heads, groups * n, head_dim], mixed by weights of the shape of the scores."""
        pieces = [
            shares @ values for shares, (_, values) in zip(*self._pieces(weights), strict=True)
        ]
        return self._folded(torch.cat(pieces, 2))

    def _pieces(self, folded: Tensor) -> tuple[Sequence[Tensor], Iterator[tuple[Tensor, Tensor]]]:
        """Pieces of a few tokens each, of rows and of the keys and values that they read.

        The rows are [B, kv_heads, groups * n, x] and become [B, kv_heads, n, groups, x]; keys and
        values are [B, kv_heads, n, s, head_dim].
        """
        batch, heads, width, _ = self.slots.shape
        by_token = folded.reshape(batch, heads, -1, width, folded.shape[-1]).transpose(2, 3)
        slots, masks = (torch.split(x, _TOKENS_AT_ONCE, 2) for x in (self.slots, self.mask))
        return torch.split(by_token, _TOKENS_AT_ONCE, 2), map(self._read, slots, masks)

    def _read(self, slots: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = self.appending.read_at(self.layer, slots.flatten(2))
        shape = (*slots.shape, keys.shape[-1])
        # Masked entries may be NaN, and 0 times NaN is NaN; these are copies, so zeroing them is safe.
        nothing = mask.isneginf()[..., None]
        return keys.view(shape).masked_fill_(nothing, 0.0), values.view(shape).masked_fill_(
            nothing, 0.0
        )

    @staticmethod
    def _folded(by_token: Tensor) -> Tensor:
        return by_token.transpose(2, 3).flatten(2, 3)
