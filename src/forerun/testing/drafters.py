"""A drafter of trees from a toy model: drawn with or without replacement, or the most likely."""

from __future__ import annotations

from collections.abc import Sequence as Several

import torch
from torch import Tensor

from forerun.contracts import DrafterSetup
from forerun.core import NO_DRAFT, Draft, Drawing, Exactness, ForwardOutput, Plan, Sequence, Verdict
from forerun.errors import ConfigError
from forerun.randomness import Randomness
from forerun.sampling import Prefix, draw_siblings
from forerun.testing.toy import ToyModel


class TreeDrafter:
    """Every node of depth d gets `branching[d]` children, drawn in order.

    Args:
        model: whose rows the children are drawn from.
        branching: children a node by depth; the plan's number of tokens bounds the depth.
        replacement: whether a sibling may repeat the token of an earlier one.
    """

    name = "tree"
    exactness = Exactness.DISTRIBUTIONAL
    drawings = frozenset(Drawing)
    draws_trees = True
    needs_draft_model = False
    hidden_layers: tuple[int, ...] = ()

    def __init__(
        self, model: ToyModel, branching: tuple[int, ...] = (2, 2, 1), replacement: bool = False
    ) -> None:
        self.model, self.branching, self.replacement = model, branching, replacement
        self.vocab_size: int | None = model.vocab_size
        self.rows: int | None = None

    @classmethod
    def build(cls, setup: DrafterSetup) -> TreeDrafter:
        """Draft from the target itself, which must be a toy model."""
        if not isinstance(setup.target, ToyModel):
            raise ConfigError(f"{cls.name} drafts from toy models only, not {setup.target.name}.")
        return cls(setup.target)

    def propose(
        self, sequences: Several[Sequence], plans: Several[Plan], randomness: Randomness
    ) -> list[Draft]:
        pairs = zip(sequences, plans, strict=True)
        return [self._grow(sequence, plan, randomness) for sequence, plan in pairs]

    def observe(
        self, sequences: Several[Sequence], verdicts: Several[Verdict], output: ForwardOutput
    ) -> None:
        """Nothing to learn."""

    def release(self, sequence: Sequence) -> None:
        """Nothing to forget."""

    def _grow(self, sequence: Sequence, plan: Plan, randomness: Randomness) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        rows: list[Tensor] = []
        level = [-1]
        for children in self.branching[: plan.num_tokens]:
            grown = []
            for parent in level:
                drafted = tuple(Draft(tuple(tokens), tuple(parents)).tokens_to(parent))
                if drafted and drafted[-1] in sequence.stop_token_ids:
                    continue
                logits = self.model.next_logits([*sequence.token_ids, *drafted])
                nodes = range(len(tokens), len(tokens) + children)
                for token, row in draw_siblings(
                    logits[None],
                    Prefix(sequence, drafted),
                    plan.drawing,
                    nodes,
                    randomness,
                    replacement=self.replacement,
                ):
                    grown.append(len(tokens))
                    tokens.append(token)
                    parents.append(parent)
                    rows.append(row)
            level = grown
        if not tokens:
            return NO_DRAFT
        probs = torch.stack(rows) if plan.drawing is Drawing.DRAW else None
        return Draft(tuple(tokens), tuple(parents), probs)
