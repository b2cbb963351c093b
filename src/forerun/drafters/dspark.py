"""A block head drafts all tokens of a draft in one pass of its layers, then picks them one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

from pydantic import Field

from forerun.contracts import DrafterSetup
from forerun.core import (
    NO_DRAFT,
    Draft,
    Drawing,
    ForwardOutput,
    Plan,
    Request,
    Verdict,
)
from forerun.drafters.base import BaseDrafter
from forerun.options import options

# What needs torch is imported where it is used: options and help are read without it.
if TYPE_CHECKING:
    from torch import Tensor

    from forerun.heads.dspark import DSparkHead
    from forerun.heads.features import Missing
    from forerun.randomness import Randomness
    from forerun.trees.growth import Growth


@options
class DSparkOptions:
    """When a chain ends early."""

    least_confidence: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="End a chain where the head expects the next token to be reached and accepted with "
        "less than this probability; 0 drafts all tokens that are planned.",
    )


class DSparkDrafter(BaseDrafter):
    """Drafts with a block head: chains, and trees of what it finds most probable.

    Args:
        head: on what the target runs on.
        rows: requests at once.
        capacity: tokens of prompt and output a request.
        vocab_size: of the target.
        least_confidence: see `DSparkOptions`.
        acceptance: by depth and rank, as it was measured when the head was trained.
        calibration: scale and bias of the logits of its confidence, by position; further positions are as
            the head has them.
    """

    name = "dspark"
    head: str | None = "dspark"
    drawings = frozenset(Drawing)
    takes_trees = True
    options = DSparkOptions

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
        from forerun.heads.features import Features

        self._head, self.rows, self.vocab_size = head, rows, vocab_size
        self._vocab_size, self._capacity = vocab_size, capacity
        self._least, self.acceptance = least_confidence, acceptance
        self._calibration = calibration or ()
        self.hidden_layers = head.config.target_layers
        self._cache = head.new_cache(rows, capacity)
        self._features = Features(self.hidden_layers, rows, self._cache)

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
            setup.read(DSparkOptions).least_confidence,
            files.acceptance_by_rank,
            files.calibration,
        )

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        from forerun.trees.growth import start

        drafts = [NO_DRAFT] * len(requests)
        growths: dict[int, Growth] = {}
        missing: list[Missing] = []
        for index, (request, plan) in enumerate(zip(requests, plans, strict=True)):
            lacking = self._features.missing(request) if plan.num_tokens else None
            if lacking is not None:
                growths[index] = start(request, plan.cut(self._head.config.draft_tokens))
                missing.append(lacking)
        if growths:
            self._grow(list(growths.values()), missing, randomness)
        for index, growth in growths.items():
            drafts[index] = growth.finish()
        return drafts

    def observe(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Draft],
        verdicts: Sequence[Verdict],
        output: ForwardOutput,
    ) -> None:
        self._features.observe(requests, verdicts, output)

    def observe_prefill(self, request: Request, start: int, output: ForwardOutput) -> None:
        self._features.observe_prefill(request, start, output)

    def clear_row(self, row: int) -> None:
        self._features.clear(row)

    def _grow(
        self, growths: Sequence[Growth], missing: Sequence[Missing], randomness: Randomness
    ) -> None:
        """Run the block of each request, then give its tree level after level."""
        from forerun.trees.growth import grow

        rows = [growth.request.row for growth in growths]
        self._head.run_context(self._cache, rows, [lacking.states for lacking in missing])
        for growth, lacking in zip(growths, missing, strict=True):
            self._features.ran(growth.request, len(lacking.states))
        newest = [growth.request.token_ids[-1] for growth in growths]
        hidden = self._head.run_block(self._cache, rows, newest)
        base = self._head.base_logits(hidden)
        growing = dict(enumerate(growths))
        expected = [1.0] * len(growths)
        for level in range(self._head.config.draft_tokens):
            before: list[int] = []
            for growth in growing.values():
                before += growth.run_frontier()[0] if level else growth.request.token_ids[-1:]
            places = [index for index, growth in growing.items() for _ in growth.frontier]
            if self._least:
                states = hidden[places, level]
                kept = self._confident(growing, places, states, before, expected, level)
                growing = {
                    index: growing[index] for index in dict.fromkeys(places[k] for k in kept)
                }
                places, before = [places[k] for k in kept], [before[k] for k in kept]
                if not growing:
                    return
            # Each row of the block is read once, but where nodes of a tree share it.
            alone = len(places) == 1
            logits = base[places[0], level : level + 1] if alone else base[places, level]
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
        kept = []
        for node, (index, share) in enumerate(zip(places, logits.sigmoid().tolist(), strict=True)):
            if len(growing[index].frontier) == 1:
                expected[index] *= share
                if expected[index] < self._least:
                    continue
            kept.append(node)
        return kept
