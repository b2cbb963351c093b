"""Eviction by the attention of the newest token (TOVA: Oren et al., arXiv 2401.06104)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.compression.base import Held, Method

if TYPE_CHECKING:
    from torch import Tensor


class TOVA(Method):
    """Keeps the tokens that the newest one attends to most, on average over all heads."""

    name = "tova"
    observed = 1

    def score(self, held: Held, state: Tensor | None) -> Tensor:
        attention = held.attention(held.queries).mean((0, 1))
        return attention.expand(held.shape[0], -1)
