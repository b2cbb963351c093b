"""Medusa's heads draft all tokens of a draft from one state, each without knowing the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from forerun.contracts import DrafterSetup
from forerun.core import NO_DRAFT, Draft, Drawing, ForwardOutput, Plan, Request, Verdict
from forerun.drafters.base import BaseDrafter

# What needs torch is imported where it is used: options and help are read without it.
if TYPE_CHECKING:
    from torch import Tensor

    from forerun.heads.medusa import MedusaHead
    from forerun.randomness import Randomness
    from forerun.trees.growth import Growth


class MedusaDrafter(BaseDrafter):
    """Drafts chains and trees with Medusa's heads (Cai et al., arXiv 2401.10774).

    All nodes of a level have the same row, whatever was drafted before them. Medusa's own tree is one
    shape for every text, the best for the measured acceptance of each head's ranks: so are drawn trees
    here, while the most probable nodes of each text make greedy ones. It drafts nothing for a request
    until it has seen the state of the newest token that the target has run.

    Args:
        head: on what the target runs on.
        rows: requests at once.
        layers: of the target.
        vocab_size: of the target.
        acceptance: by head and rank, as it was measured when they were trained.
    """

    name = "medusa"
    head: str | None = "medusa"
    drawings = frozenset(Drawing)
    takes_trees = True

    def __init__(
        self,
        head: MedusaHead,
        rows: int,
        layers: int,
        vocab_size: int,
        acceptance: tuple[tuple[float, ...], ...] | None = None,
    ) -> None:
        from forerun.heads.features import Features

        self.module, self.rows, self.vocab_size = head, rows, vocab_size
        self.hidden_layers, self.acceptance = (layers,), acceptance
        self._features = Features(self.hidden_layers, rows)

    @classmethod
    def build(cls, setup: DrafterSetup) -> Self:
        from forerun.heads.medusa import MedusaHead

        assert setup.head is not None, "the engine opens the head"
        target = setup.target
        head = MedusaHead.open(target, setup.head)
        acceptance = setup.head.acceptance_by_rank
        return cls(head, setup.rows, target.num_layers, target.vocab_size, acceptance)

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        import torch

        from forerun.trees.growth import start

        drafts = [NO_DRAFT] * len(requests)
        growths: dict[int, Growth] = {}
        states: list[Tensor] = []
        levels = 0
        for index, (request, plan) in enumerate(zip(requests, plans, strict=True)):
            newest = self._features.missing(request) if plan.num_tokens else None
            if newest is not None:
                plan = plan.cut(self.module.config.num_heads)
                growths[index] = start(request, plan)
                states.append(newest.states)
                levels = max(levels, plan.num_tokens)
        if growths:
            logits = self.module.run(torch.cat(states), levels)
            self._grow(list(growths.values()), logits, randomness)
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

    def _grow(self, growths: Sequence[Growth], logits: Tensor, randomness: Randomness) -> None:
        """Give the trees level after level of the logits [B, levels, Vd]."""
        from forerun.trees.growth import grow

        growing = dict(enumerate(growths))
        for level in range(logits.shape[1]):
            own = logits[list(growing), level]
            grow(list(growing.values()), own, randomness, self.module.vocabulary, shared=True)
            growing = {index: growth for index, growth in growing.items() if growth.frontier}
            if not growing:
                return
