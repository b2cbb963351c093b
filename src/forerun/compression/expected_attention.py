"""Eviction by expected attention of future queries (Devoto et al., arXiv 2510.00636)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.compression.base import Held, Method, Queries, precise

if TYPE_CHECKING:
    from torch import Tensor

# Number of future positions whose rotations are averaged.
AHEAD = 512


class ExpectedAttention(Method):
    """Keeps the tokens that future queries are expected to attend to most.

    The expectation is over a normal distribution fitted to the queries so far, with the average
    rotation of future positions. It is weighted by the norms of the tokens' values.
    """

    name = "expected_attention"
    counts = True

    def count(self, held: Held, queries: Queries, state: Tensor | None) -> Tensor:
        """Add the moments of queries by head, [heads, size + 1, size + 1].

        They are the sums of ones, queries and their products.
        """
        from torch.nn import functional

        vectors = functional.pad(precise(queries.vectors), (0, 1), value=1.0)
        products = vectors.mT @ vectors
        return products if state is None else state + products

    def score(self, held: Held, state: Tensor | None) -> Tensor:
        import torch

        assert state is not None
        heads, _, size = held.shape
        moments = state / state[:, -1:, -1:]
        mean = moments[:, -1:, :-1]
        spread = moments[:, :-1, :-1] - mean.mT @ mean
        ahead = held.length + torch.arange(AHEAD, device=mean.device)[None]
        mean = held.rotate(mean, ahead)
        spread = held.rotate(held.rotate(spread, ahead).mT, ahead).mT
        keys = precise(held.keys)[:, None]
        by_mean = (keys @ mean.reshape(heads, -1, size, 1))[..., 0] * size**-0.5
        by_spread = ((keys @ spread.reshape(heads, -1, size, size)) * keys).sum(-1) / (2 * size)
        expected = (by_mean + by_spread).softmax(-1).mean(1)
        worth: Tensor = expected * precise(held.values).norm(dim=-1)
        return worth
