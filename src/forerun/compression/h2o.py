"""Eviction of all but heavy hitters (H2O: Zhang et al., arXiv 2306.14048)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.compression.base import Held, Method, Queries

if TYPE_CHECKING:
    from torch import Tensor


# Queries whose attention is computed at once, so that it stays in the processor's caches.
PIECE = 64


class H2O(Method):
    """Keeps the tokens that have received most attention so far, summed over all queries."""

    name = "h2o"
    counts = True

    def count(self, held: Held, queries: Queries, state: Tensor | None) -> Tensor:
        import torch
        from torch.nn import functional

        pieces = [self._summed(held, piece) for piece in queries.split(PIECE)]
        summed = torch.stack(pieces).sum(0)
        if state is None:
            return summed
        return summed + functional.pad(state, (0, summed.shape[-1] - state.shape[-1]))

    @staticmethod
    def _summed(held: Held, queries: Queries) -> Tensor:
        weights = held.weights(queries)
        return weights.sum((1, 2)) / weights.shape[1]

    def keep(self, state: Tensor | None, slots: Tensor) -> Tensor | None:
        return None if state is None else state.gather(1, slots)

    def score(self, held: Held, state: Tensor | None) -> Tensor:
        assert state is not None
        return state
