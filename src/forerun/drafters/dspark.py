"""A block head drafts all tokens of a draft in one pass of its layers, then picks them one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

from forerun.contracts import DrafterSetup
from forerun.core import Request
from forerun.drafters.base import HeadDrafter, HeadOptions

# What needs torch is imported where it is used: options and help are read without it.
if TYPE_CHECKING:
    from torch import Tensor

    from forerun.heads.dspark import DSparkHead
    from forerun.heads.features import Missing
    from forerun.randomness import Randomness
    from forerun.trees.growth import Growth


class DSparkDrafter(HeadDrafter):
    """Drafts with a block head: chains, and trees of what it finds most probable.

    Args:
        head: on what the target runs on.
        rows: requests at once.
        capacity: tokens of prompt and output a request.
        vocab_size: of the target.
        least_confidence: see `HeadOptions`.
        acceptance: by depth and rank, as it was measured when the head was trained.
        calibration: scale and bias of the logits of its confidence, by position; further positions are as
            the head has them.
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
        """Run the block of each request, then give its tree level after level."""
        from forerun.trees.growth import grow

        rows = [growth.request.row for growth in growths]
        self._head.run_context(self._cache, rows, [lacking.states for lacking in missing])
        for growth, lacking in zip(growths, missing, strict=True):
            self.features.ran(growth.request, len(lacking.states))
        newest = [growth.request.token_ids[-1] for growth in growths]
        hidden = self._head.run_block(self._cache, rows, newest)
        base = self._head.base_logits(hidden)
        levels = base.unbind(1)
        growing = dict(enumerate(growths))
        expected = [1.0] * len(growths)
        for level in range(num_tokens):
            before: list[int] = []
            for growth in growing.values():
                before += growth.run_frontier()[0] if level else growth.request.token_ids[-1:]
            places = [index for index, growth in growing.items() for _ in growth.frontier]
            if self._least:
                states = hidden[places, level]
                nodes = self._confident(growing, places, states, before, expected, level)
                growing = {
                    index: growing[index] for index in dict.fromkeys(places[k] for k in nodes)
                }
                places, before = [places[k] for k in nodes], [before[k] for k in nodes]
                if not growing:
                    return
            # A row that is alone is read once: it need not be copied.
            logits = levels[level] if len(base) == len(places) == 1 else base[places, level]
            self._head.add_markov(logits, before)
            grow(list(growing.values()), logits, randomness, self._head.vocabulary)
            growing = {index: growth for index, growth in growing.items() if growth.frontier}
            if not growing:
                return

    def _confident(
        self,
        growing: Mapping[int, Growth],
        places: Sequence[int],
        hidden: Tensor,
        before: Sequence[int],
        expected: list[float],
        level: int,
    ) -> list[int]:
        """Which nodes of the frontiers get children: all of trees, and those of chains that are likely to
        be reached and gone on from. It depends on nothing that is drawn after them."""
        logits = self._head.confidence(hidden, before)
        if logits is None:
            return list(range(len(places)))
        if level < len(self._calibration):
            scale, bias = self._calibration[level]
            logits = logits * scale + bias
        nodes = []
        for node, (index, share) in enumerate(zip(places, logits.sigmoid().tolist(), strict=True)):
            if growing[index].ends_early:
                expected[index] *= share
                if expected[index] < self._least:
                    continue
            nodes.append(node)
        return nodes
