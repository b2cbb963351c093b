"""Blocks of the text that a view reads besides its window: those that matter most to a token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.core import BLOCK_SIZE
from forerun.kv_cache import Appending


@dataclass(frozen=True)
class BlockChoice:
    """Which blocks each key head may choose for each new token. Means of keys stand for their blocks, as in
    MoBA (arXiv 2502.13189).

    Attributes:
        hidden: whole blocks of committed text that end before a token's window, bool [B, n, blocks].
        sinks: slots before this one are read anyway.
        count: how many blocks are read at most.
    """

    hidden: Tensor
    sinks: int
    count: int

    @classmethod
    def of(cls, appending: Appending, sinks: int, window: int, count: int) -> BlockChoice | None:
        """What the tokens of a batch may choose; None where there is nothing.

        Args:
            appending: where the tokens lie in the cache.
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
            # The columns of the mask begin where a row's text ends, or before.
            text = torch.tensor(appending.starts, device=ends.device)
            text -= tree_mask.shape[-1] - batch.width
            hidden &= ends <= text[:, None, None]
        return cls(hidden, sinks, min(count, len(ends)))

    def read(self, appending: Appending, layer: int, query: Tensor) -> Chosen:
        """Read the blocks whose mean key has the largest product with the sum of a token's queries.

        Args:
            appending: where the tokens lie in the cache.
            layer: of the model; its keys are there.
            query: [B, heads, n, head_dim], as the keys are read.
        """
        means = appending.block_means(layer)
        batch, _, width, size = query.shape
        heads = means.shape[1]
        scores = query.reshape(batch, heads, -1, width, size).sum(2) @ means.mT
        scores = scores.masked_fill(~self.hidden[:, None], -torch.inf)
        best = scores.topk(self.count)
        slots = torch.arange(BLOCK_SIZE, device=query.device)
        slots = (best.indices[..., None] * BLOCK_SIZE + slots).flatten(-2)
        there = best.values.isneginf().logical_not().repeat_interleave(BLOCK_SIZE, -1)
        there &= slots >= self.sinks
        mask = torch.zeros_like(slots, dtype=query.dtype).masked_fill_(~there, -torch.inf)
        keys, values = appending.read_at(layer, slots.flatten(2))
        shape = (batch, heads, width, -1, size)
        return Chosen(keys.view(shape), values.view(shape), mask)


@dataclass(frozen=True)
class Chosen:
    """What each token reads of the cache alone.

    Attributes:
        keys, values: [B, kv_heads, n, s, head_dim].
        mask: additive, [B, kv_heads, n, s].
    """

    keys: Tensor
    values: Tensor
    mask: Tensor

    def scores(self, folded: Tensor) -> Tensor:
        """Scores [B, kv_heads, groups * n, s] of queries [B, kv_heads, groups * n, head_dim]."""
        scores = self._by_token(folded) @ self.keys.mT + self.mask[:, :, :, None]
        return scores.transpose(2, 3).flatten(2, 3)

    def mix(self, weights: Tensor) -> Tensor:
        """Values [B, kv_heads, groups * n, head_dim] by weights as the scores are."""
        mixed: Tensor = self._by_token(weights) @ self.values
        return mixed.transpose(2, 3).flatten(2, 3)

    def _by_token(self, folded: Tensor) -> Tensor:
        """[B, kv_heads, n, groups, x] of [B, kv_heads, groups * n, x]."""
        batch, heads, width = self.keys.shape[:3]
        return folded.reshape(batch, heads, -1, width, folded.shape[-1]).transpose(2, 3)
