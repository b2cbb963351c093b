"""Eviction by the attention of the newest tokens (SnapKV: Li et al., arXiv 2404.14469)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.compression.base import Held, Method

if TYPE_CHECKING:
    from torch import Tensor

# Number of neighbours over which attention is averaged, so that pieces of text stay whole.
KERNEL = 5


class SnapKV(Method):
    """Keeps the tokens that the recent ones attend to most, with their neighbours."""

    name = "snapkv"

    def __init__(self, recent: int) -> None:
        super().__init__(recent)
        self.observed = recent

    def score(self, held: Held, state: Tensor | None) -> Tensor:
        from torch.nn import functional

        attention = held.attention(held.queries).mean(1)
        return functional.avg_pool1d(attention, KERNEL, stride=1, padding=KERNEL // 2)
