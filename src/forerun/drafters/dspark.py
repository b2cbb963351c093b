"""Drafting with a block head: all tokens in one pass of its layers, then picked one by one."""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING

from forerun.core import Request
from forerun.drafters.base import HeadDrafter

# Modules that need torch are imported where they are used: options and help are read without it.
if TYPE_CHECKING:
    from forerun.heads.dspark import DSparkHead
    from forerun.heads.features import Missing
    from forerun.randomness import Randomness
    from forerun.trees.growth import Growth


class DSparkDrafter(HeadDrafter):
    """Drafts with a block head: chains, and trees of what it finds most probable."""

    name = "dspark"
    head: str | None = "dspark"
    head_class = "DSparkHead"
    module: DSparkHead

    def longest(self, request: Request) -> int:
        return self.module.config.draft_tokens

    def grow(
        self,
        growths: list[Growth],
        missing: list[Missing],
        num_tokens: int,
        randomness: Randomness,
    ) -> None:
        """Run the block of each request, then grow its tree level by level."""
        from forerun.trees.growth import grow, likely

        rows = [growth.request.row for growth in growths]
        self.module.run_context(self.cache, rows, [lacking.states for lacking in missing])
        for growth, lacking in zip(growths, missing, strict=True):
            self.features.ran(growth.request, len(lacking.states))
        newest = [growth.request.token_ids[-1] for growth in growths]
        hidden = self.module.run_block(self.cache, rows, newest)
        base = self.module.base_logits(hidden)
        levels = base.unbind(1)
        growing = dict(enumerate(growths))
        for level in range(num_tokens):
            before: list[int] = []
            for growth in growing.values():
                before += growth.run_frontier()[0] if level else growth.request.token_ids[-1:]
            places = [index for index, growth in growing.items() for _ in growth.frontier]
            sure = self.module.confidence(hidden[places, level], before) if self._least else None
            if sure is not None:
                grows, nodes = likely(growing.values(), sure.sigmoid().tolist(), self._least)
                growing = dict(compress(growing.items(), grows))
                places, before = list(compress(places, nodes)), list(compress(before, nodes))
                if not growing:
                    return
            # A single row is read only once and need not be copied.
            logits = levels[level] if len(base) == len(places) == 1 else base[places, level]
            self.module.add_markov(logits, before)
            grow(list(growing.values()), logits, randomness, self.module.vocabulary)
            growing = {index: growth for index, growth in growing.items() if growth.frontier}
            if not growing:
                return
