"""What all methods of compression share: a method scores the tokens, and what stays follows from that.

Which tokens always stay, how many, and when the others go is the cache's affair
(`forerun.kv_cache.evicting`): a method sees committed tokens alone, of one layer of one row.
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
"""Vectors [heads, n, head_dim] rotated as at positions [n, k] or [1, k], by the mean rotation of each row."""


@dataclass(frozen=True)
class Queries:
    """Queries of committed tokens, before their rotation.

    Args:
        vectors: [heads, n, head_dim].
        positions: int64 [n].
        slots: where the tokens lie in their row, int64 [n].
    """

    vectors: Tensor
    positions: Tensor
    slots: Tensor

    def __len__(self) -> int:
        return len(self.positions)

    def split(self, size: int) -> list[Queries]:
        """In pieces of so many tokens, the last of the rest."""
        parts = [slice(first, first + size) for first in range(0, len(self), size)]
        return [
            Queries(self.vectors[:, part], self.positions[part], self.slots[part]) for part in parts
        ]


@dataclass(frozen=True)
class Held:
    """What one layer holds of one row; keys and values are read when they are asked for.

    Args:
        shape: kv_heads, m, head_dim.
        read: reads values, or else keys.
        queries: of the newest tokens, as many as the method asks for.
        length: tokens of the text, evicted ones too.
        rotate: see `Rotate`.
    """

    shape: tuple[int, int, int]
    read: Callable[[bool], Tensor]
    queries: Queries
    length: int
    rotate: Rotate

    @cached_property
    def keys(self) -> Tensor:
        """[kv_heads, m, head_dim], rotated as at their positions."""
        return self.read(False)

    @cached_property
    def values(self) -> Tensor:
        """[kv_heads, m, head_dim]."""
        return self.read(True)

    def attention(self, queries: Queries) -> Tensor:
        """The attention of some queries over what is held, mean over the heads that share keys:
        [kv_heads, n, m] in float32 at least."""
        return self.weights(queries).mean(1)

    def weights(self, queries: Queries) -> Tensor:
        """The same by head that shares keys, [kv_heads, group, n, m]."""
        import torch

        heads, held, size = self.shape
        rotated = self.rotate(queries.vectors, queries.positions[:, None])
        scores = precise(rotated.reshape(heads, -1, size) * size**-0.5 @ self.keys.mT)
        scores = scores.view(heads, -1, len(queries), held)
        # What comes after all queries, or before, is not looked at one by one.
        slots = queries.slots[:, None]
        first = int(slots[0]) + 1
        later = torch.arange(first, held, device=scores.device) > slots
        scores[..., first:].masked_fill_(later, -torch.inf)
        return scores.softmax(dim=-1)


def precise(values: Tensor) -> Tensor:
    """In float32 at least."""
    import torch

    return values.to(torch.promote_types(values.dtype, torch.float32))


class Method(ABC):
    """Scores the tokens of a row, in one layer; a subclass is its `score`.

    Args:
        recent: newest tokens that always stay.
    """

    name: str
    observed = 0
    """Newest queries that `score` needs."""
    counts = False
    """Whether `count` must see every committed query, once."""

    def __init__(self, recent: int) -> None:
        self.recent = recent

    @abstractmethod
    def score(self, held: Held, state: Tensor | None) -> Tensor:
        """The worth of each token by head, [kv_heads, m]: those with the largest stay.

        Args:
            state: what `count` has made.
        """

    def count(self, held: Held, queries: Queries, state: Tensor | None) -> Tensor | None:
        """Take in further committed queries; the new state."""
        return state

    def keep(self, state: Tensor | None, slots: Tensor) -> Tensor | None:
        """The state of the tokens that stay, at `slots` int64 [kv_heads, k], rising."""
        return state
