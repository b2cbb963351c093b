"""A drafter that grows trees from a toy model: drawn with or without replacement, or greedily."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch

from forerun.contracts import DrafterSetup
from forerun.core import NO_DRAFT, Draft, Drawing, Plan, Request, Tree
from forerun.drafters.base import BaseDrafter
from forerun.errors import ConfigError
from forerun.randomness import Randomness
from forerun.sampling import draw_siblings
from forerun.testing.toy import ToyModel
from forerun.trees.growth import ShapeGrowth


class TreeDrafter(BaseDrafter):
    """A drafter that gives every node of depth d `branching[d]` children, whatever tree is planned.

    Args:
        model: the toy model that the children are drawn from.
        branching: children of a node by depth; the plan's number of tokens bounds the depth.
        replacement: True if a sibling may repeat the token of an earlier one.
    """

    name = "tree"
    drawings = frozenset(Drawing)
    draws_trees = True

    def __init__(
        self, model: ToyModel, branching: tuple[int, ...] = (2, 2, 1), replacement: bool = False
    ) -> None:
        self.model, self.branching, self.replacement = model, branching, replacement
        self.vocab_size = model.vocab_size

    @classmethod
    def build(cls, setup: DrafterSetup) -> Self:
        """Draft from the target itself, which must be a toy model."""
        if not isinstance(setup.target, ToyModel):
            raise ConfigError(f"{cls.name} drafts from toy models only, not {setup.target.name}.")
        return cls(setup.target)

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        pairs = zip(requests, plans, strict=True)
        return [self._grow(request, plan, randomness) for request, plan in pairs]

    def _grow(self, request: Request, plan: Plan, randomness: Randomness) -> Draft:
        if not plan.num_tokens:
            return NO_DRAFT
        shape = Tree.branching(self.branching[: plan.num_tokens])
        growth = ShapeGrowth(request, plan.drawing, shape)
        while growth.frontier:
            prefixes = growth.prefixes()
            texts = [[*request.token_ids, *prefix.drafted] for prefix in prefixes]
            logits = torch.stack([self.model.next_logits(text) for text in texts])
            growth.extend(
                draw_siblings(
                    logits,
                    prefixes,
                    plan.drawing,
                    growth.wanted(),
                    randomness,
                    replacement=self.replacement,
                )
            )
        return growth.finish()
