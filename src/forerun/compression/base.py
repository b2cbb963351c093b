"""What all methods of compression share: a method scores the tokens, and what stays follows from that.

Which tokens always stay, how many, and when the others go is the cache's affair
(`forerun.kv_cache.compressed`): a method sees committed tokens alone, of one layer of one row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Rotate = Callable[["Tensor", "Tensor"], "Tensor"]
"""Vectors [heads, n, head_dim] rotated as at positions [n, k], by the mean rotation of each row."""


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


@dataclass(frozen=True)
class Held:
    """What one layer holds of one row.

    Args:
        keys: [kv_heads, m, head_dim], rotated as at their positions.
        read_values: makes `values`.
        queries: of the newest tokens, as many as the method asks for.
        length: tokens of the text, evicted ones too.
        rotate: see `Rotate`.
    """

    keys: Tensor
    read_values: Callable[[], Tensor]
    queries: Queries
    length: int
    rotate: Rotate

    @property
    def values(self) -> Tensor:
        """[kv_heads, m, head_dim]; read when asked for."""
        return self.read_values()

    def attention(self, queries: Queries) -> Tensor:
        """The attention of some queries over what is held, mean over the heads that share keys:
        [kv_heads, n, m] in float32 at least."""
        import torch

        heads, size = len(self.keys), self.keys.shape[-1]
        rotated = self.rotate(queries.vectors, queries.positions[:, None])
        folded = rotated.reshape(heads, -1, len(queries), size) * size**-0.5
        scores = folded @ self.keys[:, None].mT
        later = torch.arange(self.keys.shape[1], device=scores.device) > queries.slots[:, None]
        return precise(scores).masked_fill(later, -torch.inf).softmax(dim=-1).mean(1)


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
