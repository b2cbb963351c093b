"""Base of all eviction methods: a method scores tokens, and the cache keeps those with the highest scores.

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

Rotate = Callable[["Tensor", "Tensor"], "Tensor"]
"""Rotates vectors [heads, n, head_dim] to positions [n, k] or [1, k], by the mean rotation of each row."""


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
    """One row's content in one layer; keys and values are read when they are first used.

    Args:
        shape: kv_heads, m, head_dim.
        read: reads values if True, keys if False.
        queries: queries of the newest tokens, as many as the method asks for.
        length: tokens of the text, including evicted ones.
        rotate: see `Rotate`.
    """

    shape: tuple[int, int, int]
    read: Callable[[bool], Tensor]
    queries: Queries
    length: int
    rotate: Rotate

    @cached_property
    def keys(self) -> Tensor:
        """Keys [kv_heads, m, head_dim], rotated to their positions."""
        return self.read(False)

    @cached_property
    def values(self) -> Tensor:
        """Values [kv_heads, m, head_dim]."""
        return self.read(True)

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
        rotated = self.rotate(queries.vectors, queries.positions[:, None])
        scores = precise(rotated.reshape(heads, -1, size) * size**-0.5 @ self.keys.mT)
        scores = scores.view(heads, -1, len(queries), held)
        # Only slots between the first and the last query need to be masked query by query.
        slots = queries.slots[:, None]
        first = int(slots[0]) + 1
        later = torch.arange(first, held, device=scores.device) > slots
        scores[..., first:].masked_fill_(later, -torch.inf)
        return scores.softmax(dim=-1)


def precise(values: Tensor) -> Tensor:
    """The values in float32 or a wider type."""
    import torch

    return values.to(torch.promote_types(values.dtype, torch.float32))


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
