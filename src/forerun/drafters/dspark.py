"""Drafting with a block head: all tokens in one pass of its layers, then picked one by one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import TYPE_CHECKING, Self

from forerun.contracts import DrafterSetup
from forerun.core import Request
from forerun.drafters.base import HeadDrafter, HeadOptions

# Modules that need torch are imported where they are used: options and help are read without it.
if TYPE_CHECKING:
    from torch import Tensor

    from forerun.heads.dspark import DSparkHead
    from forerun.heads.features import Missing
    from forerun.randomness import Randomness
    from forerun.trees.growth import Growth


class DSparkDrafter(HeadDrafter):
    """Drafts with a block head: chains, and trees of what it finds most probable.

    Args:
        head: the head, on its target's backend.
        rows: number of requests at once.
        capacity: prompt and output tokens per request.
        vocab_size: the target's.
        least_confidence: see `HeadOptions`.
        acceptance: acceptance by depth and rank, measured when the head was trained.
        calibration: scale and bias of the head's confidence logits, by position; further positions
            are not calibrated.
    """

    name = "dspark"
    head: str | None = "dspark"
    options = HeadOptions

    def __init__(
        self,
        head: DSparkHead,
        rows: int,
        capacity: int,
        vocab_size: int,
        least_confidence: float = 0.0,
        acceptance: tuple[tuple[float, ...], ...] | None = None,
        calibration: tuple[tuple[float, ...], ...] | None = None,
    ) -> None:
        self._head, self._least = head, least_confidence
        self._calibration = calibration or ()
        self._cache = head.new_cache(rows, capacity)
        super().__init__(head.config.target_layers, rows, vocab_size, acceptance, self._cache)

    @classmethod
    def build(cls, setup: DrafterSetup) -> Self:
        from forerun.heads.dspark import DSparkHead

        files = setup.head
        assert files is not None, "the engine opens the head"
        return cls(
            DSparkHead.open(setup.target, files),
            setup.rows,
            setup.capacity,
            setup.target.vocab_size,
            setup.read(HeadOptions).least_confidence,
            files.acceptance_by_rank,
            files.calibration,
        )

    def longest(self, request: Request) -> int:
        return self._head.config.draft_tokens

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
        self._head.run_context(self._cache, rows, [lacking.states for lacking in missing])
        for growth, lacking in zip(growths, missing, strict=True):
            self.features.ran(growth.request, len(lacking.states))
        newest = [growth.request.token_ids[-1] for growth in growths]
        hidden = self._head.run_block(self._cache, rows, newest)
        base = self._head.base_logits(hidden)
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
            self._head.add_markov(logits, before)
            grow(list(growing.values()), logits, randomness, self._head.vocabulary)
            growing = {index: growth for index, growth in growing.items() if growth.frontier}
            if not growing:
                return

    def _shares(self, hidden: Tensor, before: Sequence[int], level: int) -> list[float] | None:
        """Expected acceptance of the token after each of `before`; None without a confidence head."""
        logits = self._head.confidence(hidden, before)
        if logits is None:
            return None
        if level < len(self._calibration):
            scale, bias = self._calibration[level]
            logits = logits * scale + bias
        shares: list[float] = logits.sigmoid().tolist()
        return shares
