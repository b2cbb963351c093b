"""Methods of eviction: each scores tokens, and the cache keeps those with the highest scores.

The cache (`forerun.kv_cache.evicting`) decides which tokens always stay, how many, and when the
others go. A method sees only committed tokens, of one layer of one row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# Queries whose attention is computed at once, so that it stays in the processor's caches.
PIECE = 64
# Number of neighbours over which attention is averaged, so that pieces of text stay whole.
KERNEL = 5

Rotate = Callable[["Tensor", "Tensor"], "Tensor"]
"""Rotates vectors [heads, n, head_dim] to positions [n]."""


@dataclass(frozen=True)
class Queries:
    """Queries of committed tokens, before their rotation.

    Args:
        vectors: [heads, n, head_dim].
        positions: int64 [n].
        slots: slots of the tokens in their row, int64 [n].
    """

    vectors: Tensor
    positions: Tensor
    slots: Tensor

    def __len__(self) -> int:
        return len(self.positions)

    def split(self, size: int) -> list[Queries]:
        """Split the queries into pieces of `size` tokens; the last piece has the rest."""
        parts = [slice(first, first + size) for first in range(0, len(self), size)]
        return [
            Queries(self.vectors[:, part], self.positions[part], self.slots[part]) for part in parts
        ]


@dataclass(frozen=True)
class Held:
    """One row's keys in one layer, read when they are first used.

    Args:
        shape: kv_heads, m, head_dim.
        read: reads the keys, [kv_heads, m, head_dim], rotated to their positions.
        queries: queries of the newest tokens, as many as the method asks for.
        rotate: see `Rotate`.
    """

    shape: tuple[int, int, int]
    read: Callable[[], Tensor]
    queries: Queries
    rotate: Rotate

    @cached_property
    def keys(self) -> Tensor:
        """Keys [kv_heads, m, head_dim], rotated to their positions."""
        return self.read()

    def attention(self, queries: Queries) -> Tensor:
        """Attention of some queries to the held tokens, averaged over the heads that share keys.

        [kv_heads, n, m] in float32 at least.
        """
        return self.weights(queries).mean(1)

    def weights(self, queries: Queries) -> Tensor:
        """Attention of some queries to the held tokens, head by head, [kv_heads, group, n, m].

        The query heads of a group share keys.
        """
        import torch

        heads, held, size = self.shape
        rotated = self.rotate(queries.vectors, queries.positions)
        scores = rotated.reshape(heads, -1, size) * size**-0.5 @ self.keys.mT
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        scores = scores.view(heads, -1, len(queries), held)
        # Only slots between the first and the last query need to be masked query by query.
        slots = queries.slots[:, None]
        first = int(slots[0]) + 1
        later = torch.arange(first, held, device=scores.device) > slots
        scores[..., first:].masked_fill_(later, -torch.inf)
        weights: Tensor = scores.softmax(dim=-1)
        return weights


class Method(ABC):
    """Scores the tokens of a row in one layer; a subclass defines `score`.

    Args:
        recent: newest tokens that always stay.
    """

    name: str
    observed = 0
    """Number of newest queries that `score` needs."""
    counts = False
    """True if `count` must see every committed query, once."""

    def __init__(self, recent: int) -> None:
        self.recent = recent

    @abstractmethod
    def score(self, held: Held, state: Tensor | None) -> Tensor:
        """The worth of each token by head, [kv_heads, m]; the tokens with the largest worth stay.

        Args:
            held: the tokens.
            state: the state that `count` returned.
        """

    def count(self, held: Held, queries: Queries, state: Tensor | None) -> Tensor | None:
        """Take in further committed queries and return the new state."""
        return state

    def keep(self, state: Tensor | None, slots: Tensor) -> Tensor | None:
        """The part of the state for the tokens that stay, at `slots` int64 [kv_heads, k], rising."""
        return state


class StreamingLLM(Method):
    """Keeps the newest tokens, beside the sinks (Xiao et al., arXiv 2309.17453)."""

    name = "streaming_llm"

    def score(self, held: Held, state: Tensor | None) -> Tensor:
        import torch

        heads, size, _ = held.shape
        return torch.arange(size, device=held.queries.slots.device).float().expand(heads, size)


class H2O(Method):
    """Keeps the tokens that got most attention so far, over all queries (Zhang et al., arXiv 2306.14048)."""

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


class SnapKV(Method):
    """Keeps the tokens that the recent ones attend to most, with neighbours (Li et al., arXiv 2404.14469)."""

    name = "snapkv"

    def __init__(self, recent: int) -> None:
        super().__init__(recent)
        self.observed = recent

    def score(self, held: Held, state: Tensor | None) -> Tensor:
        from torch.nn import functional

        attention = held.attention(held.queries).mean(1)
        return functional.avg_pool1d(attention, KERNEL, stride=1, padding=KERNEL // 2)


class TOVA(Method):
    """Keeps the tokens that the newest attends to most, over all heads (Oren et al., arXiv 2401.06104)."""

    name = "tova"
    observed = 1

    def score(self, held: Held, state: Tensor | None) -> Tensor:
        attention = held.attention(held.queries).mean((0, 1))
        return attention.expand(held.shape[0], -1)
