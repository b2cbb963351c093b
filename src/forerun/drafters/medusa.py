"""Drafting with Medusa's heads: all tokens from one state, each independent of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.core import Request
from forerun.drafters.base import HeadDrafter

# Modules that need torch are imported where they are used: options and help are read without it.
if TYPE_CHECKING:
    from forerun.heads.features import Missing
    from forerun.heads.medusa import MedusaHead
    from forerun.randomness import Randomness
    from forerun.trees.growth import Growth


class MedusaDrafter(HeadDrafter):
    """Drafts chains and trees with Medusa's heads (Cai et al., arXiv 2401.10774).

    All nodes of a level have the same row, whatever was drafted before them. Medusa's own tree has
    one shape for every text, the best for the measured acceptance of each head's ranks. Sampled
    trees have such a shape here, while greedy ones have the most probable nodes of each text. It
    drafts nothing for a request until it has seen the state of the newest token that the target has
    run.
    """

    name = "medusa"
    head: str | None = "medusa"
    head_class = "MedusaHead"
    module: MedusaHead

    def longest(self, request: Request) -> int:
        return self.module.config.num_heads

    def grow(
        self,
        growths: list[Growth],
        missing: list[Missing],
        num_tokens: int,
        randomness: Randomness,
    ) -> None:
        import torch

        from forerun.trees.growth import grow

        logits = self.module.run(torch.cat([newest.states for newest in missing]), num_tokens)
        growing = dict(enumerate(growths))
        for level in range(num_tokens):
            own = logits[list(growing), level]
            grow(list(growing.values()), own, randomness, self.module.vocabulary, shared=True)
            growing = {index: growth for index, growth in growing.items() if growth.frontier}
            if not growing:
                return
