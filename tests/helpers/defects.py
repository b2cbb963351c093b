"""Five defects of published implementations, planted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from forerun.core import Draft, Drawing, Plan, Request
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.randomness import Purpose, Randomness
from forerun.testing import ToyModel, TreeDrafter
from forerun.verification.decision import Decision, acceptance
from forerun.verification.token import TokenRule


class SoftmaxForArgmax(DraftModelDrafter):
    """Proposes its most likely token and records the softmax row."""

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        drawn = [replace(plan, drawing=Drawing.GREEDY) for plan in plans]
        drafts = super().propose(requests, drawn, randomness)
        return [self._with_rows(*pair) for pair in zip(requests, drafts, strict=True)]

    def _with_rows(self, request: Request, draft: Draft) -> Draft:
        if not len(draft):
            return draft
        model: ToyModel = self.model  # type: ignore[assignment]
        nodes = range(-1, len(draft) - 1)
        logits = [model.next_logits([*request.token_ids, *draft.tokens_to(i)]) for i in nodes]
        return replace(draft, probs=torch.stack(logits).softmax(-1))


class DropsUnlikely(DraftModelDrafter):
    """Ends the draft before a drawn token of low probability."""

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        return [self._cut(draft) for draft in super().propose(requests, plans, randomness)]

    def _cut(self, draft: Draft) -> Draft:
        if draft.probs is None:
            return draft
        assert isinstance(draft.probs, Tensor)
        for node, token in enumerate(draft.token_ids):
            if draft.probs[node, token] < 0.3:
                return Draft.chain(draft.token_ids[:node], draft.probs[:node] if node else None)
        return draft


class OtherTemperature(DraftModelDrafter):
    """Records the rows at another temperature than it drew from."""

    def propose(
        self, requests: Sequence[Request], plans: Sequence[Plan], randomness: Randomness
    ) -> list[Draft]:
        drafts = super().propose(requests, plans, randomness)
        return [
            replace(draft, probs=(draft.probs.log() * 0.6).softmax(-1))
            if isinstance(draft.probs, Tensor)
            else draft
            for draft in drafts
        ]


class RecoversFromTarget(TokenRule):
    """Draws the recovered token from the target row instead of the residual."""

    def decide(self, draft: Draft, target_probs: Tensor) -> Decision:
        return replace(super().decide(draft, target_probs), emit=target_probs)


class OnceABranch(TokenRule):
    """Battery every sibling against the whole target row."""

    def decide(self, draft: Draft, target_probs: Tensor) -> Decision:
        right = super().decide(draft, target_probs)
        q = draft.dense_probs(target_probs.shape[-1])
        accept = []
        for node, (parent, token) in enumerate(
            zip(draft.tree.parents, draft.token_ids, strict=True)
        ):
            p = target_probs[parent + 1, token]
            accept.append(p if q is None else acceptance(p, q[node, token].to(p)))
        if not accept:
            return right
        return replace(right, accept=torch.stack(accept))


class OneNumberADraft(Randomness):
    """All tokens of a draft are drawn with one number: each alone is right."""

    def uniform(self, seed: int, position: int, purpose: Purpose, node: int = 0) -> float:
        return super().uniform(seed, position, purpose, 0 if purpose is Purpose.DRAFT else node)


class TheSameEachRound(Randomness):
    """A generator that is seeded anew each round: every round tests with the same numbers."""

    def uniform(self, seed: int, position: int, purpose: Purpose, node: int = 0) -> float:
        return super().uniform(seed, 0, purpose, node)


def chain_drafter(kind: type[DraftModelDrafter], draft: ToyModel, rows: int) -> DraftModelDrafter:
    return kind(draft, rows, draft.max_context)


def tree_drafter(draft: ToyModel) -> TreeDrafter:
    return TreeDrafter(draft, (3, 2))
