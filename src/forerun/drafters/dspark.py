"""Drafting with a block head: all tokens in one pass of its layers, then picked one by one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import TYPE_CHECKING, Self

from forerun.contracts import CausalLM, DrafterSetup
from forerun.core import Request
from forerun.drafters.base import HeadDrafter

# Modules that need torch are imported where they are used: options and help are read without it.
if TYPE_CHECKING:
    from torch import Tensor

    from forerun.heads.dspark import DSparkHead
    from forerun.heads.features import Missing
    from forerun.heads.files import HeadFiles
    from forerun.randomness import Randomness
    from forerun.trees.growth import Growth


class DSparkDrafter(HeadDrafter):
    """Drafts with a block head: chains, and trees of what it finds most probable.

    Attributes:
        calibration: scale and bias of the head's confidence logits, by position; further positions
            are not calibrated.
    """

    name = "dspark"
    head: str | None = "dspark"
    module: DSparkHead
    calibration: tuple[tuple[float, ...], ...] = ()

    @classmethod
    def build(cls, setup: DrafterSetup) -> Self:
        drafter = super().build(setup)
        assert setup.head is not None
        drafter.calibration = setup.head.calibration or ()
        return drafter

    @staticmethod
    def open_head(target: CausalLM, files: HeadFiles) -> DSparkHead:
        from forerun.heads.dspark import DSparkHead

        return DSparkHead.open(target, files)

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
            shares = self._shares(hidden[places, level], before, level) if self._least else None
            if shares is not None:
                grows, nodes = likely(growing.values(), shares, self._least)
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

    def _shares(self, hidden: Tensor, before: Sequence[int], level: int) -> list[float] | None:
        """Expected acceptance of the token after each of `before`; None without a confidence head."""
        logits = self.module.confidence(hidden, before)
        if logits is None:
            return None
        if level < len(self.calibration):
            scale, bias = self.calibration[level]
            logits = logits * scale + bias
        shares: list[float] = logits.sigmoid().tolist()
        return shares
